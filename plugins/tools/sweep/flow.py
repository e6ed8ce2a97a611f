"""The flow of a search: from a config and a space to a registered model.

One MLflow run owns the search; the runs of trials and final fits are nested in it. The images are
read, split and decoded once. The trials are Prefect tasks, one after the other or several at once.
A flow run that resumes a search continues every trial where it was.
"""

from __future__ import annotations

import contextvars
import hashlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.utilities.annotations import quote

from patchline.flows.closing import close_runs
from patchline.flows.prefect_api.failures import build_failed_state
from patchline.flows.progress.progress_display import display
from patchline.flows.training import outcome_pages
from patchline.flows.training.chosen_launcher import (
    build_context,
    build_memory,
    use_chosen_launcher,
)
from patchline.flows.training.outcome_pages import announce, emit, tell_failure
from patchline.flows.training.stage_tasks import as_task, training_tags, watch_slots
from patchline.pipeline import redaction
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.errors import DataError, RunError
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.plugin_system import plugin_settings
from patchline.pipeline.plugin_system.plugin_loader import plugin_files
from patchline.pipeline.registry import registered_models
from patchline.pipeline.registry.browsing.outcome import Outcome
from patchline.pipeline.registry.browsing.pages import write_pages
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.registry.browsing.run_summary import summary_of as run_summary_of
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.evaluate import Evaluate
from patchline.pipeline.stages.lines import Pipeline, line_of
from patchline.pipeline.stages.read import data_name
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.stages.train import Train
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.training.machine import choose_device, detect_cached_machine
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers import worker_process
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import SUMMARY_FILE, InterruptedRun
from patchline.pipeline.workspace.tracking import nested_runs, provenance, tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import NewRun, TrackedRun
from patchline.plugins.tools.sweep import final_fits, search, sweep_pages
from patchline.plugins.tools.sweep.config import COMMAND, SWEEP, SweepConfig, SweepRequest
from patchline.plugins.tools.sweep.final_fits import (
    PlannedFit,
    SweepResult,
    SweepSummary,
    TestedFit,
    best_trial,
    summary_of,
)
from patchline.plugins.tools.sweep.outline import SearchOutline, check_test_labels, whole_fit
from patchline.plugins.tools.sweep.search import (
    SearchClock,
    TrialInputs,
    epochs_words,
    trial_name,
)
from patchline.plugins.tools.sweep.space import SearchSpace
from patchline.plugins.tools.sweep.study import (
    JOURNAL_FILE,
    Study,
    StudyIdentity,
    StudyOptions,
    Trial,
    TrialRecord,
    best_of,
    open_study,
)
from patchline.plugins.tools.sweep.tool import SWEEP_FINISHED, SWEEP_STARTED

_DESCRIPTION = """\
Search for better settings than the plan's: many trials, stopped early unless they are among the
best; then the best settings and the plan's, each with new seeds, compared on the test images. The
images are read once. One MLflow run holds all others; the artifact *sweep* links to it.
"""
Space = dict[str, Any]


def flow_name() -> str:
    """Return the name of a new flow run: its data."""
    config = outcome_pages.flow_config()
    return f"{config.name or data_name(config)} sweep"


@flow(
    name="Search settings",
    flow_run_name=flow_name,
    description=_DESCRIPTION,
    on_crashed=[close_runs.on_crashed],
    on_cancellation=[close_runs.on_cancellation],
)
def sweep_flow(
    config: RunConfig,
    sweep: SweepConfig,
    space: Space,
    resume: str | None = None,
    fresh: bool = False,
) -> SweepSummary:
    """Search for settings, compare the best with the plan, and register it.

    Args:
        config: everything that decides what a trial computes, but for what is searched.
        sweep: length and method of the search.
        space: nested settings with their ranges; empty for the default space.
        resume: id of a search that failed or was killed, which is continued.
        fresh: compute every stage instead of reusing results of earlier runs.
    """
    with outcome_pages.flow_process("search"):
        try:
            interrupted = _find_interrupted(resume)
            if interrupted and interrupted.finished:
                return SweepSummary.from_file(interrupted.folder / SUMMARY_FILE)
            with interrupted_runs.resume_alone(interrupted) if interrupted else nullcontext():
                found = interrupted.request if interrupted else None
                if isinstance(found, SweepRequest):
                    display().note(f"resuming search {str(resume)[:8]}")
                    config, sweep, space, fresh = (
                        found.config,
                        found.sweep,
                        found.space,
                        found.fresh,
                    )
                checked = plugin_settings.check_plugins(config)
                with use_chosen_launcher(checked.launcher):
                    return _Sweep.of(checked, sweep, space, interrupted, fresh=fresh).finish()
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            return build_failed_state(error)  # type: ignore[return-value]  # Prefect raises it


def _find_interrupted(resume: str | None) -> InterruptedRun | None:
    runs = WORKSPACE.resolve() / "runs"
    if resume:
        return interrupted_runs.find(resume, runs, display().note, SWEEP)
    return interrupted_runs.of_flow_run(str(flow_run.id), runs, SWEEP)


@dataclass
class _Sweep:
    """A search on its way from the data to the registered version."""

    line: Pipeline
    context: Context
    settings: SweepConfig
    given: Space
    interrupted: InterruptedRun | None
    approval: str = ""
    """The approval that was requested, or why it could not be."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        settings: SweepConfig,
        given: Space,
        interrupted: InterruptedRun | None,
        *,
        fresh: bool,
    ) -> _Sweep:
        """Return the search, before its first stage."""
        context = build_context(config, fresh=fresh)
        return cls(line_of(config), context, settings, given, interrupted)

    def finish(self) -> SweepSummary:
        """Search, compare and register."""
        context, line = self.context, self.line
        try:
            engine.prewarm_at_start(line.before_run, context.config)
            engine.run_stages(line.before_run, context, as_task, self._check_data)
            check_test_labels(context.get(IngestedData))
            start = whole_fit(context.config, context.find(Plan), context.get(IngestedData))
            for note in start.notes:
                display().note(note)
            context.config = start.config
            space = SearchSpace.of(self.given, start.config)
            with self._opened() as run:
                outline = SearchOutline.of(
                    self.settings, space, start.config, start.seconds_per_epoch, start.notes
                )
                summary = self._searched(run, space, outline)
                summary.to_file(run.folder / SUMMARY_FILE)
        except BaseException as error:
            tell_failure(self.context, error, COMMAND)
            raise
        emit(
            SWEEP_FINISHED,
            f"run.{summary.run_id}",
            name=summary.name,
            run_id=summary.run_id,
            version=summary.version,
            trials=summary.trials,
            verdict=summary.verdict,
        )
        return summary

    # -- the search ----------------------------------------------------------------------------

    def _searched(
        self, run: TrackedRun, space: SearchSpace, outline: SearchOutline
    ) -> SweepSummary:
        plan, data, steps = self.context.config, self.context.get(IngestedData), outline.rungs
        study, identity = self._study(run, space, steps, data)
        if identity.parent_run_id != run.run_id:
            nested_runs.nest(run, identity.parent_run_id)
        values = space.plan_values(plan)
        study.begin(values)
        clock = SearchClock(run.folder, self.settings.time_limit)
        inputs = self._trial_inputs(run, space, steps)
        search.settle(study.own_records())
        for line in outline.lines():
            display().note(line)
        display().stage("Searching")
        TrialTasks(
            study, inputs, clock, self.settings.workers, partial(_log_trials, run, study)
        ).run()
        search_seconds = clock.seconds
        if identity.parent_run_id != run.run_id:
            return _summarize_joined(run, study, identity)
        wait_for_others(study)
        records = study.records()
        best = best_of(records)
        if best is None:
            reasons = [each.reason for each in records if each.reason]
            why: Any = {
                "records": records,
                "reasons": reasons,
                "limit": self.settings.time_limit,
            }
            raise RunError(render_markdown("no_best.md.j2", __package__, **why))
        began = time.monotonic()
        tested, chosen_context = self._final_fits(run, space, best)
        final_seconds = time.monotonic() - began
        comparison = final_fits.compare_fits(
            tested, best.validation or 0.0, data.counts.get("validation", 0)
        )
        report = tested[0].evaluated.report
        champion = ""
        if comparison.gain.value <= 0:
            champion = _champion_words(str(plan.name), report.headline.name)
        registered = None if champion else self._registered(chosen_context)
        result = SweepResult(
            name=str(plan.name),
            study=identity.name,
            metric=report.headline.name,
            data_fingerprint=data.fingerprint,
            images=data.counts,
            space={key: dimension.text() for key, dimension in space.dimensions.items()},
            outside=outline.outside,
            rungs=steps,
            sampler=self.settings.sampler,
            reduction=self.settings.reduction,
            seed=plan.seed,
            trials=tuple(records),
            search_seconds=search_seconds,
            final_seconds=final_seconds,
            best=best,
            is_plan=best.is_plan,
            finals=tuple(fit.record for fit in tested),
            gain=comparison.gain,
            best_test=comparison.best,
            plan_test=comparison.plan,
            test_groups=comparison.groups,
            optimism=comparison.optimism,
            notes=outline.notes,
            registered=f"{plan.name}, version {registered.version}" if registered else "",
            champion=champion,
        )
        page = sweep_pages.publish(run, result, space, plan)
        return summary_of(result, registered, plan, page, run)

    def _study(
        self, run: TrackedRun, space: SearchSpace, steps: tuple[int, ...], data: IngestedData
    ) -> tuple[Study, StudyIdentity]:
        plan, settings = self.context.config, self.settings
        identity = StudyIdentity(
            name=settings.study or f"{plan.name}-{run.run_id[:8]}",
            data_fingerprint=data.fingerprint,
            plan=_digest(plan),
            space=space,
            rungs=steps,
            parent_run_id=run.run_id,
        )
        options = StudyOptions(
            owner=f"{socket.gethostname()}:{run.folder.name}",
            storage=settings.storage,
            reduction=settings.reduction,
            most_trials=settings.most_trials,
            sampler=settings.sampler,
            seed=plan.seed,
        )
        opened = open_study(identity, run.folder, options)
        if self.interrupted:
            place = redaction.redact_text(settings.storage or str(run.folder / JOURNAL_FILE))
            search.check_nothing_lost(run, opened[0].records(), place)
        return opened

    def _trial_inputs(
        self, run: TrackedRun, space: SearchSpace, steps: tuple[int, ...]
    ) -> TrialInputs:
        context = self.context
        return TrialInputs(
            plan=context.config,
            space=space,
            rungs=steps,
            data=context.get(IngestedData),
            prepared=context.get(PreparedData),
            workspace=context.workspace,
            parent=run,
            memory=partial(build_memory, fresh=context.memory.fresh),
            teacher=Train.of(context).predictions,
            threads=_threads(context.config, self.settings.workers),
            prepares_next=self.settings.workers == 1,
        )

    # -- the final fits ------------------------------------------------------------------------

    def _final_fits(
        self, run: TrackedRun, space: SearchSpace, best: TrialRecord
    ) -> tuple[list[TestedFit], Context]:
        """Train the final fits, choose one by validation, and test all of them.

        The runs stay open until all are tested, so that a process which resumes finds either none
        or all of the test metrics.
        """
        plan, data = self.context.config, self.context.get(IngestedData)
        config = space.resolved(plan, best.settings, data)
        planned = list(
            final_fits.plan_fits(config, plan, self.settings.seeds, is_plan=best.is_plan)
        )
        display().stage(_final_title(planned, self.settings.seeds))
        with ExitStack() as stack:
            contexts = [self._trained(fit, run, stack) for fit in planned]
            results = [each.get(TrainResult) for each in contexts]
            chosen_position = final_fits.winner(list(zip(planned, results, strict=True)))
            display().stage("Reading the test images, once for all final fits")
            tested = []
            for position, (fit, context) in enumerate(zip(planned, contexts, strict=True)):
                if position != chosen_position:
                    context.config = final_fits.sparse(context.config)
                engine.run_stages([Evaluate], context, as_task)
                tested.append(_make_tested_fit(fit, context))
        return tested, contexts[chosen_position]

    def _trained(self, fit: PlannedFit, parent: TrackedRun, stack: ExitStack) -> Context:
        """Train one final fit in its nested run, which stays open as long as the stack."""
        runs = parent.folder / fit.nested.folder
        run = nested_runs.find_finished(parent, fit.nested.key, nested_runs.KEY_TAG, runs)
        if run is None:
            run = stack.enter_context(nested_runs.open_nested_run(parent, fit.nested, fit.config))
        memory = build_memory(fresh=self.context.memory.fresh)
        memory.enter(run.run_id, run.folder)
        context = self.context.branch(fit.config, memory)
        context.put(run)
        lineage = engine.early_tags(self.line.before_run, context)
        tags = {**provenance.plugin_tags(fit.config), **lineage, final_fits.FINAL_TAG: fit.name}
        tracked_run.set_tags(run, tags)
        display().note(f"final fit: {fit.name}")
        engine.run_stages([Train], context, as_task)
        return context

    def _registered(self, context: Context) -> RunSummary:
        """Package, register and promote the fit that the validation split has chosen."""
        stages = self.line.in_run
        engine.enter(context.get(TrackedRun), self.line.before_run, context)  # logs its data
        after = stages[stages.index(Evaluate) + 1 :]
        engine.run_stages(after, context, as_task, partial(self._announce, context))
        outcome = outcome_pages.outcome_of(context)
        if isinstance(outcome, Outcome):
            write_pages(outcome)
        file = outcome.run.folder / launching.CONFIG_FILE
        return run_summary_of(outcome, context.seconds, file, self.approval, context.memory.reused)

    def _announce(self, context: Context, result: FrozenModel) -> None:
        self.approval = announce(context, result) or self.approval

    # -- the run -------------------------------------------------------------------------------

    def _check_data(self, result: FrozenModel) -> None:
        """Make sure that a search is not continued with other data than it started with."""
        if not isinstance(result, IngestedData) or self.interrupted is None:
            return
        before = self.interrupted.request.data_fingerprint
        if result.fingerprint != before:
            raise DataError(
                f"The data has changed since the search {self.interrupted.run_id[:8]} started "
                f"(version {before[:12]} then, {result.fingerprint[:12]} now), so its trials "
                "cannot be compared with new ones. Start a new search."
            )

    def _opened(self) -> AbstractContextManager[TrackedRun]:
        """Open the MLflow run of the search, or reopen the interrupted one."""
        context, line = self.context, self.line
        if self.interrupted:
            opened = outcome_pages.reopen(self.interrupted, line, context)
        else:
            tags = engine.early_tags(line.before_run, context)
            opened = tracked_run.open_run(self._new_run(tags), context.workspace / "runs")
        return outcome_pages.enter_run(opened, line, context, "sweep", SWEEP_STARTED)

    def _new_run(self, tags: dict[str, str]) -> NewRun:
        context = self.context
        config = context.config
        request = SweepRequest(
            config=config,
            data_fingerprint=context.get(IngestedData).fingerprint,
            plugin_files=tuple(str(file) for file in plugin_files()),
            fresh=context.memory.fresh,
            code=self.line.code,
            sweep=self.settings,
            space=self.given,
        )
        return NewRun(
            experiment=str(config.name),
            name=f"{config.name} sweep",
            command=COMMAND,
            params=config.flat(),
            tags={**provenance.plugin_tags(config), **tags},
            request=request.model_dump_json(indent=2),
        )


def _summarize_joined(run: TrackedRun, study: Study, identity: StudyIdentity) -> SweepSummary:
    """Return the summary of a machine that has joined the study of another one."""
    records = study.records()
    best = best_of(records)
    return SweepSummary(
        study=identity.name,
        trials=len(records),
        best=best_trial(best) if best else None,
        metrics={},
        run_id=run.run_id,
        status="FINISHED",
        trial_table=tuple(records),
        epochs=sum(each.epochs for each in records),
        rungs=identity.rungs,
        verdict=(
            f"No trial of the study {identity.name} is left. The machine that began it, in its run "
            f"{identity.parent_run_id[:8]}, trains the best settings again and registers the model."
        ),
    )


def _log_trials(run: TrackedRun, study: Study) -> None:
    sweep_pages.log_trials(run, study.records())


def _make_tested_fit(fit: PlannedFit, context: Context) -> TestedFit:
    return TestedFit(
        planned=fit,
        run_id=context.get(TrackedRun).run_id,
        trained=context.get(TrainResult),
        evaluated=context.get(Evaluated),
    )


def _threads(config: RunConfig, workers: int) -> int | None:
    """Return the CPU threads of one of several trials; None to leave the plan's."""
    machine = detect_cached_machine()
    if workers == 1 or choose_device(config.training, machine) != "cpu":
        return None
    return max(1, (config.training.threads or machine.threads) // workers)


def _digest(config: RunConfig) -> str:
    """Return a digest of the settings that trials have in common, on whichever machine."""
    own: Any = {
        **dict.fromkeys(("launcher", "promotion", "evaluation"), True),
        "data": {"path", "root", "workers"},
        "training": {"threads"},
    }
    text = config.model_dump_json(exclude=own)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _final_title(planned: list[PlannedFit], seeds: int) -> str:
    if len(planned) == 1:
        return "Training the best settings, which are the plan, with a new seed"
    return f"Training the best settings and the plan with {seeds} new seeds each"


def _champion_words(name: str, metric: str) -> str:
    """Return which version is champion, with its test metric; empty if none is."""
    version = registered_models.champion_of(name)
    if version is None:
        return ""
    [model] = registered_models.summaries(name)
    values = next((each.metrics for each in model.versions if each.version == version), {})
    value = values.get(f"test/{metric}")
    figure = "an unknown test" if value is None else f"{value:.1%} test"
    return f"the champion stays {name}/{version}, with {figure} {metric}"


_FAILURES = 3
"""The search ends if so many trials have failed, and no other outcome is known."""
_OTHERS_SECONDS = 5.0
"""Between two looks at the trials of other machines."""
_STATE_NAMES = {"complete": "Completed", "stopped": "Stopped", "failed": "Trial failed"}


@dataclass(frozen=True)
class TrialTasks:
    """The trials of a search that this process trains.

    Args:
        study: the study that holds the trials of the search.
        inputs: what all trials share.
        clock: the time that the search has taken so far, and its limit.
        workers: the number of trials at a time.
        after: called after each trial.
    """

    study: Study
    inputs: TrialInputs
    clock: SearchClock
    workers: int
    after: Callable[[], None]

    def run(self) -> None:
        """Train trials until there are enough, or the time is over.

        Raises:
            RunError: if the first trials all fail.
        """
        if self.workers == 1:
            self._until_the_end()
            return
        with worker_process.cancellable() as cancelled, ThreadPoolExecutor(self.workers) as pool:
            loops = [
                pool.submit(contextvars.copy_context().run, self._until_the_end)
                for _ in range(self.workers)
            ]
            try:
                for loop in as_completed(loops):
                    loop.result()
            except BaseException:
                cancelled.set()
                raise

    def _until_the_end(self) -> None:
        while not self.clock.is_over:
            worker_process.check_cancelled()
            trial = self.study.next()
            if trial is None:
                return
            self._train(trial)

    def _train(self, trial: Trial) -> None:
        number = trial.record.number
        tags = training_tags(self.inputs.plan)
        name = trial_name(trial.record)
        run: Any = task(
            name="Train a trial",
            task_run_name=name,
            description="Train one choice of settings from rung to rung.",
            cache_policy=NO_CACHE,
            tags=tags,
        )
        display().note(name)
        with trial.alive(), watch_slots(tags) as begun:
            run(self._function(begun.set))(quote(trial))
        record = self.study.record(number)
        self._check_failures()
        display().note(f"trial {number}: {outcome_words(record, self.study.records())}")
        self.after()

    def _function(self, begin: Callable[[], None]) -> Callable[[Trial], State[Any]]:
        def train_a_trial(trial: Trial) -> State[Any]:
            begin()
            search.train_trial(trial, self.inputs, self.clock, self._show)
            record = trial.record
            words = outcome_words(record, self.study.records())
            return Completed(name=_STATE_NAMES.get(record.state), message=words)

        return train_a_trial

    def _show(self, event: Event) -> None:
        """Show warnings, and the progress of a trial that trains alone."""
        if event["kind"] == "warning" and not launching.resumes(event):
            display().note(event["message"])
        elif event["kind"] == "progress" and event["unit"] == "step" and self.workers == 1:
            beside = f"epoch {event['epoch']:,}, {event['images_per_second']:,.0f} images/s"
            display().advance("Training", event["done"], event["total"], beside, unit="steps")

    def _check_failures(self) -> None:
        ended = [each for each in self.study.records() if each.state != "unfinished"]
        if len(ended) >= _FAILURES and all(each.state == "failed" for each in ended):
            raise RunError(
                f"The first {len(ended)} trials failed, the last one because: {ended[-1].reason} "
                "Change the settings or the search space."
            )


def wait_for_others(study: Study) -> None:
    """Wait for the trials that other machines still train; one that has fallen silent has none."""
    said = False
    while study.alive_elsewhere():
        if not said:
            display().note("waiting for the trials of other machines")
            said = True
        time.sleep(_OTHERS_SECONDS)


def outcome_words(record: TrialRecord, records: list[TrialRecord]) -> str:
    """Return the outcome of a trial, for a line in the terminal.

    Args:
        record: the record of the trial.
        records: the record of each trial so far.
    """
    best = best_of(records)
    is_best = best is not None and best.number == record.number
    return render_markdown(
        "outcome.md.j2", __package__, record=record, is_best=is_best, epochs=epochs_words
    )
