"""Read the data, make the plan, and say what a search would try, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchline.flows.training.dry_run import dry_run
from patchline.pipeline.config import RunConfig
from patchline.pipeline.planning.facts import Plan
from patchline.plugins.tools.sweep.config import SweepConfig
from patchline.plugins.tools.sweep.outline import SearchOutline
from patchline.plugins.tools.sweep.space import SearchSpace, check_given
from patchline.plugins.tools.sweep.whole_fit import check_settings, whole_fit


def search_dry_run(
    config: RunConfig, sweep: SweepConfig, space: dict[str, Any], workspace: Path
) -> tuple[Plan | None, SearchOutline]:
    """Return the plan, and the outline of the search that would begin with it.

    Args:
        config: what all trials have in common, not resolved.
        sweep: length and method of the search.
        space: nested settings with their ranges; empty for the default space.
        workspace: the folder `.patchline`.

    Raises:
        PipelineError: if the data, the weights, the settings or the space cannot be used.
    """
    check_settings(config)
    check_given(space)
    tried = dry_run(config, workspace)
    start = whole_fit(tried.config, tried.plan, tried.data)
    searched = SearchSpace.of(space, start.config)
    outline = SearchOutline.of(sweep, searched, start.config, start.seconds_per_epoch, start.notes)
    return tried.plan, outline
