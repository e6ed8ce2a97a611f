"""Search from a script or the command line: a config and a space in, a summary out.

Prefect is imported inside the functions, after the first message.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.progress.progress_display import display
from patchline.flows.training.chosen_launcher import chosen_launcher
from patchline.flows.training.run_training import enter_workspace, in_prefect
from patchline.pipeline.plugin_system.plugin_loader import plugin_files, use_plugin_files
from patchline.pipeline.training.machine import MODULE, resources_of
from patchline.pipeline.workers import worker_start
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
    enter_workspace()
    with worker_start.prepared_workers(), chosen_launcher(config.launcher) as launcher:
        resources = resources_of(config.training)
        launcher.prepare(MODULE, resources)
        display().stage(f"Listing the images ({config.data.path or config.data.source})")
        from patchline.pipeline.stages import engine
        from patchline.pipeline.stages.lines import line_of
        from patchline.plugins.tools.sweep.outline import check_settings
        from patchline.plugins.tools.sweep.space import check_given

        check_settings(config)
        check_given(space)
        for sentence in engine.check(line_of(config).stages, config, WORKSPACE.resolve()):
            display().note(sentence)
        launcher.slots(resources)
        return _in_prefect(config, sweep, space, fresh=fresh)


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
    files = [*map(Path, request.plugin_files), *plugin_files()]
    use_plugin_files(list(dict.fromkeys(files)))
    with worker_start.prepared_workers(), chosen_launcher(request.config.launcher):
        return _in_prefect(request.config, request.sweep, request.space, resume=interrupted.run_id)


def _in_prefect(
    config: RunConfig,
    sweep: SweepConfig,
    space: dict[str, Any],
    *,
    resume: str | None = None,
    fresh: bool = False,
) -> SweepSummary:
    def search() -> SweepSummary:
        from patchline.plugins.tools.sweep.flow import sweep_flow

        return sweep_flow(config, sweep, space, resume=resume, fresh=fresh)

    return in_prefect(search)
