"""What is needed to resume a search."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from patchline.pipeline.workspace.run_memory.interrupted_runs import RunKind, RunRequest
from patchline.plugins.tools.sweep.config import SweepConfig

COMMAND = "patchline sweep"


class SweepRequest(RunRequest):
    """The request for a search; `config` has the settings of a whole fit of the plan."""

    sweep: SweepConfig
    space: dict[str, Any] = Field(default_factory=dict)
    """Nested settings with their ranges, as they were given; empty for the default space."""


SWEEP = RunKind(COMMAND, SweepRequest)
