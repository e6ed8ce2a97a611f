"""What a training run has gathered on its way through the stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.progress import display
from pipeline.config import RunConfig
from pipeline.initial_weights.stage import StartingPoint
from pipeline.planning.facts import Plan
from pipeline.run_memory.interrupted_runs import InterruptedRun
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.tracking import tracked_run

REUSED_TAG = "patchline.reused"
"""Followed by a stage: the run whose result was used instead of computing it again."""


@dataclass
class RunState:
    """What a run has gathered on the way from the data to the model."""

    config: RunConfig
    memory: StageMemory
    interrupted: InterruptedRun | None = None
    """The run that is continued."""
    fallback: tuple[RunConfig, StageMemory] | None = None
    """For a new run, in case the data is no longer that of the interrupted one."""
    start: StartingPoint | None = None
    """The initial weights, if there are any."""
    plan: Plan | None = None
    """What filled in the preset, if there was one."""
    seconds: dict[str, float] = field(default_factory=dict)
    run: tracked_run.TrackedRun | None = None

    @contextmanager
    def stage(self, key: str, title: str) -> Iterator[None]:
        """Show the title of a stage and measure its seconds."""
        display().stage(title)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[key] = round(time.monotonic() - began, 2)
        if self.run:
            self.tag_reuse(self.run)

    def tag_reuse(self, run: tracked_run.TrackedRun) -> None:
        """Tag the run with the stages whose results came from other runs."""
        tags = {f"{REUSED_TAG}.{stage}": source for stage, source in self.memory.reused.items()}
        if tags:
            tracked_run.set_tags(run, tags)
