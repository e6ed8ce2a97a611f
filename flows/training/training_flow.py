"""The training flow: from a config to a registered model.

One MLflow run owns the stages from training on. A flow run that Prefect retries, and one that
resumes a run by its id, continue that run from the stage that failed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from prefect import flow
from prefect.runtime import flow_run

from patchline.flows.closing import close_runs
from patchline.flows.notifications import events
from patchline.flows.prefect_api.failures import build_failed_state
from patchline.flows.progress.progress_display import command_began, display
from patchline.flows.training import outcome_pages
from patchline.flows.training.chosen_launcher import build_context, use_chosen_launcher
from patchline.flows.training.outcome_pages import announce, emit, tell_failure
from patchline.flows.training.stage_tasks import as_task
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.plugin_system import plugin_settings
from patchline.pipeline.plugin_system.plugin_loader import plugin_files
from patchline.pipeline.registry.browsing.outcome import recipe
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.lines import Pipeline, line_of
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.workspace import run_folders
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import (
    SUMMARY_FILE,
    InterruptedRun,
    RunRequest,
)
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

_PROCESSES_TAG = "patchline.processes"
"""Of a run that was resumed with another number: all of them, in their order."""


@flow(
    name="Train and register",
    flow_run_name=outcome_pages.flow_name,
    description=outcome_pages.FLOW_DESCRIPTION,
    on_crashed=[close_runs.on_crashed],
    on_cancellation=[close_runs.on_cancellation],
)
def training_flow(config: RunConfig, resume: str | None = None, fresh: bool = False) -> RunSummary:
    """Read the data, train, evaluate, package and register.

    Args:
        config: everything that decides what is computed.
        resume: id of a run that failed or was killed, which is continued.
        fresh: compute every stage instead of reusing results of earlier runs.
    """
    runs = WORKSPACE.resolve() / "runs"
    with outcome_pages.flow_process("training"):
        try:
            interrupted = (
                interrupted_runs.find(resume, runs, display().note)
                if resume
                else interrupted_runs.of_flow_run(str(flow_run.id), runs)
            )
            if interrupted and interrupted.finished:  # Prefect missed its end
                return RunSummary.from_file(interrupted.folder / SUMMARY_FILE)
            with interrupted_runs.resume_alone(interrupted) if interrupted else nullcontext():
                new = _new_run(config, fresh=fresh)
                run = _continue_run(interrupted, new, by_hand=bool(resume)) if interrupted else new
                with use_chosen_launcher(run.context.config.launcher):
                    engine.prewarm_at_start(run.line.stages, run.context.config)
                    return run.finish()
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            return build_failed_state(error)  # type: ignore[return-value]  # Prefect raises it


def _new_run(config: RunConfig, *, fresh: bool) -> _Run:
    checked = plugin_settings.check_plugins(config)
    context = build_context(checked, fresh=fresh)
    context.began = command_began()
    return _Run(line_of(checked), context)


def _continue_run(interrupted: InterruptedRun, new: _Run, *, by_hand: bool) -> _Run:
    """Return the run to continue; only a retry may fall back to a new one."""
    display().note(f"resuming run {interrupted.run_id[:8]}")
    run = _new_run(interrupted.request.config, fresh=interrupted.request.fresh)
    if interrupted.request.code != run.line.code:
        display().note(
            "the code has changed since it started; the remaining stages use the new code"
        )
    run.context.memory.enter(interrupted.run_id, interrupted.folder)
    run.context.memory.private = bool(interrupted.request.processes_before)
    if interrupted.request.plan:
        run.context.put(Plan.model_validate(interrupted.request.plan))
    return replace(run, interrupted=interrupted, fallback=None if by_hand else new)


@dataclass
class _Run:
    """A run on its way through the stages of its line."""

    line: Pipeline
    context: Context
    interrupted: InterruptedRun | None = None
    """The run that is continued."""
    fallback: _Run | None = None
    """A new run, in case the data is no longer that of the interrupted one."""
    approval: str = ""
    """The approval that was requested, or why it could not be."""

    def finish(self) -> RunSummary:
        """Go through all stages, and report how the run ended."""
        try:
            engine.run_stages(self.line.before_run, self.context, as_task, self._after)
            opened = self._reopened(self.interrupted) if self.interrupted else self._new()
            context = self.context
            with outcome_pages.enter_run(
                opened, self.line, context, recipe(context.config), events.RUN_STARTED
            ) as run:
                engine.run_stages(self.line.in_run, self.context, as_task, self._after)
                summary = outcome_pages.publish_outcome(self.context, self.approval)
                summary.to_file(run.folder / SUMMARY_FILE)
                run_folders.send_file(run.folder / SUMMARY_FILE)
        except BaseException as error:
            tell_failure(self.context, error, "patchline run")
            raise
        emit(
            events.RUN_FINISHED,
            f"run.{summary.run_id}",
            name=summary.name,
            run_id=summary.run_id,
            version=summary.version,
            accuracy=accuracy.value if (accuracy := summary.metrics.get("test/accuracy")) else None,
            seconds=round(sum(summary.seconds.values()), 1),
        )
        return summary

    def _after(self, result: FrozenModel) -> None:
        """Do what orchestration adds to the result of a stage: checks, events, approvals."""
        if isinstance(result, IngestedData) and self.interrupted:
            self._check_data_unchanged(self.interrupted, result)
        else:
            self.approval = announce(self.context, result) or self.approval

    def _check_data_unchanged(self, interrupted: InterruptedRun, data: IngestedData) -> None:
        """Make sure that a run is not continued with other data than it started with."""
        before = interrupted.request.data_fingerprint
        if data.fingerprint == before:
            return
        changed = (
            f"The data has changed since the run {interrupted.run_id[:8]} started (version "
            f"{before[:12]} then, {data.fingerprint[:12]} now), so it cannot be continued."
        )
        if self.fallback is None:
            raise DataError(f"{changed} Start a new run.")
        display().note(f"{changed} A new run is started.")
        new = self.fallback.context
        self.context.config, self.context.memory = new.config, new.memory
        self.context.drop(Plan)
        self.interrupted = None

    def _new(self) -> AbstractContextManager[TrackedRun]:
        context, plan = self.context, self.context.find(Plan)
        request = RunRequest(
            config=context.config,
            plan=plan.model_dump(mode="json") if plan else None,
            data_fingerprint=context.get(IngestedData).fingerprint,
            plugin_files=tuple(str(file) for file in plugin_files()),
            fresh=context.memory.fresh,
            code=self.line.code,
        )
        tags = engine.early_tags(self.line.before_run, context)
        runs = context.workspace / "runs"
        text = request.model_dump_json(indent=2)
        return tracked_run.open_owned_run(context.config, runs, tags, text)

    def _reopened(self, interrupted: InterruptedRun) -> AbstractContextManager[TrackedRun]:
        tags = {}
        if before := interrupted.request.processes_before:
            numbers = (*before, interrupted.request.config.training.processes)
            tags[_PROCESSES_TAG] = ", ".join(map(str, numbers))
        return outcome_pages.reopen(interrupted, self.line, self.context, **tags)
