"""Search from a script or the command line: a config and a space in, a summary out.

Prefect is imported inside the functions, after the first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchline.flows.progress.progress_display import display
from patchline.flows.training.run_training import begin, enter_workspace, resume
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig
    from patchline.plugins.tools.sweep.config import SweepConfig
    from patchline.plugins.tools.sweep.result import SweepSummary


def run_sweep(
    config: RunConfig, sweep: SweepConfig, space: dict[str, Any], *, fresh: bool = False
) -> SweepSummary:
    """Run the flow of a search, on a temporary Prefect server unless another one is configured.

    Args:
        config: what all trials have in common.
        sweep: length and method of the search.
        space: nested settings with their ranges; empty for the default space.
        fresh: compute every stage instead of reusing results of earlier runs.

    Raises:
        PipelineError: the reason why the search failed.
    """

    def check() -> None:
        from patchline.plugins.tools.sweep.outline import check_settings
        from patchline.plugins.tools.sweep.space import check_given

        check_settings(config)
        check_given(space)

    def search() -> SweepSummary:
        from patchline.plugins.tools.sweep.flow import sweep_flow

        return sweep_flow(config, sweep, space, fresh=fresh)

    return begin(config, search, check)


def resume_sweep(reference: str) -> SweepSummary:
    """Continue a search that failed or was killed, with the settings that it was started with.

    Args:
        reference: the MLflow run's id, the first characters of the id, its name, or `last`.

    Raises:
        ConfigError: if there is no such search, or it cannot be continued.
        PipelineError: the reason why it failed.
    """
    from patchline.pipeline.workspace.run_memory import interrupted_runs
    from patchline.plugins.tools.sweep.config import SWEEP, SweepRequest

    enter_workspace()
    runs = WORKSPACE.resolve() / "runs"
    interrupted = interrupted_runs.find(reference, runs, display().note, SWEEP)
    request = interrupted.request
    if not isinstance(request, SweepRequest):
        raise TypeError(f"{interrupted.folder} holds no request of a search")

    def search() -> SweepSummary:
        from patchline.plugins.tools.sweep.flow import sweep_flow

        return sweep_flow(request.config, request.sweep, request.space, resume=interrupted.run_id)

    return resume(interrupted, search)
