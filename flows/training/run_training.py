"""Train from a script, a notebook or the command line: a config in, a summary out.

Nothing here parses arguments or prints; whoever calls it chooses how progress is shown
(`patchline.flows.progress.progress_display.show_progress`). Prefect is imported inside the
functions, after the first message.
"""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from patchline.flows.progress.progress_display import display
from patchline.flows.training.chosen_launcher import use_chosen_launcher
from patchline.pipeline import local_services
from patchline.pipeline.plugin_system.plugin_loader import plugin_files, use_plugin_files
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.training.machine import MODULE, resources_of
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace import cache, cache_limit, chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig
    from patchline.pipeline.registry.browsing.run_summary import RunSummary
    from patchline.pipeline.workspace.run_memory.interrupted_runs import InterruptedRun

Summary = TypeVar("Summary")


def run_training(config: RunConfig, *, fresh: bool = False) -> RunSummary:
    """Run the training flow, on a temporary Prefect server unless another one is configured.

    Args:
        config: what to compute; `patchline.pipeline.config_files.build_config` assembles and checks
            it.
        fresh: compute every stage instead of reusing results of earlier runs.

    Raises:
        PipelineError: the reason why the run failed.
    """

    def train() -> RunSummary:
        from patchline.flows.training.training_flow import training_flow

        return training_flow(config, fresh=fresh)

    return begin(config, train)


def begin(
    config: RunConfig, call_flow: Callable[[], Summary], check: Callable[[], None] | None = None
) -> Summary:
    """Check a new run, and call its flow, before which its worker is started.

    Args:
        config: the settings of the new run.
        call_flow: imports the flow while the server starts, and calls it.
        check: refuses further settings.

    Raises:
        PipelineError: the reason why the run failed.
    """
    enter_workspace()
    with worker_start.allow_prepared_workers(), use_chosen_launcher(config.launcher) as launcher:
        resources = resources_of(config.training)
        launcher.prepare(MODULE, resources)  # its imports take as long as those of this process
        display().stage(f"Listing the images ({config.data.path or config.data.source})")
        from patchline.flows import prefect_session

        with prefect_session.server():  # which imports meanwhile
            from patchline.pipeline.stages import engine
            from patchline.pipeline.stages.lines import line_of

            if check:
                check()
            line = line_of(config)
            for sentence in engine.check(line.stages, config, WORKSPACE.resolve()):
                display().note(sentence)
            # A cluster that cannot be used is an error before anything starts.
            launcher.slots(resources)
            engine.prewarm_at_start(line.before_run, config)
            return _in_prefect(call_flow)


def resume_training(reference: str, processes: int | None = None) -> RunSummary:
    """Continue a training run that failed or was killed, with the settings it was started with.

    Args:
        reference: the MLflow run's id, the first characters of the id, its name, or `last`.
        processes: the number of processes that train together; None for as many as before.

    Raises:
        ConfigError: if there is no such run, or it cannot be continued.
        PipelineError: the reason why the run failed.
    """
    from patchline.pipeline.workspace.run_memory import interrupted_runs

    enter_workspace()
    interrupted = interrupted_runs.find(reference, WORKSPACE.resolve() / "runs", display().note)
    before = interrupted.request.config.training.processes
    if processes is not None and processes != before:
        interrupted = interrupted_runs.with_processes(interrupted, processes)
        display().note(
            f"resuming with {counted(processes, 'process', 'processes')} instead of {before}: the "
            "batches are the same, but the last bits of the weights are not those of either "
            "number, so other runs do not reuse them"
        )

    def train() -> RunSummary:
        from patchline.flows.training.training_flow import training_flow

        request = interrupted.request
        return training_flow(request.config, resume=interrupted.run_id, fresh=request.fresh)

    return resume(interrupted, train)


def resume(interrupted: InterruptedRun, call_flow: Callable[[], Summary]) -> Summary:
    """Call the flow of an interrupted run, with the plugins and the launcher that it had."""
    config = interrupted.request.config
    files = [*map(Path, interrupted.request.plugin_files), *plugin_files()]
    use_plugin_files(list(dict.fromkeys(files)))
    with worker_start.allow_prepared_workers(), use_chosen_launcher(config.launcher) as launcher:
        launcher.prepare(MODULE, resources_of(config.training))
        from patchline.flows import prefect_session

        with prefect_session.server():
            return _in_prefect(call_flow)


def _in_prefect(call_flow: Callable[[], Summary]) -> Summary:
    """Call a flow, on the Prefect server of the enclosing block."""
    up = local_services.find_running() is not None
    display().stage(f"{'Connecting to' if up else 'Starting'} Prefect and MLflow")
    from prefect import tags

    from patchline.flows import prefect_session

    prefect_session.use_database()
    from patchline.flows.closing import close_runs
    from patchline.flows.training import training_flow  # noqa: F401 - while the server starts

    if not up:
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")  # which takes a second
    with prefect_session.ready():
        _say_where_runs_are_tracked()
        for sentence in close_runs.close_abandoned_runs():
            display().note(sentence)
        with live_runs.owner(WORKSPACE.resolve()) as owner, tags(owner):
            summary = call_flow()
    _shrink_cache()
    return summary


def enter_workspace() -> None:
    """Connect to a shared workspace, if there is one, before anything is computed.

    Raises:
        ConfigError: if its address or the credentials are wrong.
        StorageError: if it does not answer, or may not be written.
    """
    chosen.tell(lambda sentence: display().note(sentence))
    if shared := chosen.find_shared_files():
        shared.check_writable()
        display().note(f"workspace {shared.uri}, cached in {WORKSPACE}")
    _shrink_cache()


def _shrink_cache() -> None:
    """Remove what was not used for longest, if the cache is larger than its limit."""
    active = [record for record in live_runs.records(WORKSPACE) if not record.is_dead]
    started = [dt.datetime.fromisoformat(record.started).timestamp() for record in active]
    state = cache.shrink(min(started, default=None))
    if state.removed:
        display().note(
            f"the cache is limited to {state.limit / 1e9:,.3g} GB ({cache_limit.LIMIT_VARIABLE}): "
            f"removed {counted(len(state.removed), 'folder')}, not used since the others"
        )
    if state.bytes > state.limit:
        display().note(
            f"the cache holds {state.bytes / 1e9:,.3g} GB, more than the limit of "
            f"{state.limit / 1e9:,.3g} GB, because active runs and other commands use it"
        )


def _say_where_runs_are_tracked() -> None:
    """Say what a store of runs on this machine alone means in a shared workspace."""
    from patchline.pipeline.workspace.tracking.tracking_store import use_store

    store = use_store()
    if store.startswith("sqlite") and not chosen.is_local():
        display().note(
            f"runs are tracked in {redact_text(store)} on this machine: other machines reuse the "
            "results of this workspace, but can neither list nor resume its runs; set "
            "MLFLOW_TRACKING_URI to a server for that"
        )
