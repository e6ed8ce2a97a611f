"""The training flow: from a config to a registered model.

One MLflow run owns the whole line. A flow run that Prefect retries, and one that resumes a run by
its id, continue that run from the stage that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.approval import requests
from flows.closing import close_runs
from flows.failures import failed
from flows.notifications import events
from flows.progress import display
from flows.training import encoder_stages, run_messages, stages
from flows.training.run_state import RunState
from pipeline import quiet_libraries, redaction
from pipeline.automation import event_kinds
from pipeline.browsing.outcome import Outcome
from pipeline.browsing.run_summary import RunSummary, summary_of
from pipeline.config import RunConfig
from pipeline.data import ingestion, prepare_stage
from pipeline.data.assumed_symmetries import notes_on_mirroring_weights
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.data.seen_images import notes_on_seen, with_seen
from pipeline.errors import DataError, PipelineError, TakenOverError
from pipeline.evaluation.chosen_images import EXPLANATIONS
from pipeline.evaluation.evaluating import Evaluated
from pipeline.files.atomic_files import write_text
from pipeline.initial_weights.stage import StartingPoint
from pipeline.packaging.job import Package
from pipeline.planning import stage as planning
from pipeline.planning.facts import Plan
from pipeline.plugin_system import plugin_settings
from pipeline.plugin_system.plugin_loader import plugin_files
from pipeline.registry import registered_models, registration
from pipeline.registry.promotion import Promotion
from pipeline.registry.registered_models import TEST_IMAGES_TAG
from pipeline.registry.registration import Registered
from pipeline.run_memory import interrupted_runs, live_runs
from pipeline.run_memory.interrupted_runs import SUMMARY_FILE, InterruptedRun, RunRequest
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.tracking import tracked_run
from pipeline.training import launching, run_parts
from pipeline.training.train_result import TrainResult
from pipeline.workers import prewarm, worker_start
from pipeline.workspace import WORKSPACE


@flow(
    name="Train and register",
    flow_run_name=run_messages.flow_name,
    description=run_messages.FLOW_DESCRIPTION,
    on_crashed=[close_runs.on_crashed],
    on_cancellation=[close_runs.on_cancellation],
)
def training_flow(config: RunConfig, resume: str | None = None, fresh: bool = False) -> RunSummary:
    """Read the data, train, evaluate, package and register: one MLflow run owns the whole line.

    Args:
        config: everything that decides what is computed.
        resume: id of a run that failed or was killed, which is continued.
        fresh: compute every stage instead of reusing results of earlier runs.
    """
    quiet_libraries.apply()  # a worker starts the flow without the command line
    redaction.install()
    workspace = WORKSPACE.resolve()
    flow_run_id = str(flow_run.id)
    with live_runs.alive(workspace, flow_run_id, "training"), worker_start.prepared_workers():
        prewarm.training()
        try:
            interrupted = (
                interrupted_runs.find(resume, workspace / "runs", display().note)
                if resume
                else interrupted_runs.of_flow_run(flow_run_id, workspace / "runs")
            )
            if interrupted and interrupted.finished:  # Prefect missed its end
                return _saved_summary(interrupted)
            state = _state(config, StageMemory(workspace, fresh=fresh, on_note=display().note))
            if interrupted:
                state = _continued(interrupted, state, by_hand=bool(resume))
            return _run_stages(state)
        except PipelineError as error:
            return failed(error)  # type: ignore[return-value]  # Prefect raises it


def _state(
    config: RunConfig, memory: StageMemory, interrupted: InterruptedRun | None = None
) -> RunState:
    return RunState(plugin_settings.checked_plugins(config), memory, interrupted)


def _continued(interrupted: InterruptedRun, new: RunState, *, by_hand: bool) -> RunState:
    """Return the state of an interrupted run; only a retry may fall back to a new run."""
    display().note(f"resuming run {interrupted.run_id[:8]}")
    if interrupted.code_changed:
        display().note(
            "the code has changed since it started; the remaining stages use the new code"
        )
    fresh = interrupted.request.fresh
    memory = StageMemory(new.memory.workspace, fresh=fresh, on_note=display().note)
    memory.enter(interrupted.run_id, interrupted.folder)
    state = _state(interrupted.request.config, memory, interrupted)
    if interrupted.request.plan:
        state.plan = Plan.model_validate(interrupted.request.plan)
    state.fallback = None if by_hand else (new.config, new.memory)
    return state


def _run_stages(state: RunState) -> RunSummary:
    """Run all stages and report how the run ended."""
    try:
        data, prepared = _read_and_prepare(state)
        with _opened(state, data) as run:
            summary = _train_and_register(state, run, data, prepared)
    except BaseException as error:
        _report_failure(state, error)
        raise
    _emit(
        event_kinds.RUN_FINISHED,
        f"run.{summary.run_id}",
        name=summary.name,
        run_id=summary.run_id,
        version=summary.version,
        accuracy=accuracy.value if (accuracy := summary.metrics.get("test/accuracy")) else None,
        seconds=round(sum(summary.seconds.values()), 1),
    )
    return summary


def _emit(event: str, resource: str, **payload: Any) -> None:
    events.emit(event, f"patchline.{resource}", payload)


def _read_and_prepare(state: RunState) -> tuple[IngestedData, PreparedData]:
    config, workspace = state.config, state.memory.workspace
    if config.preset:
        prewarm.planning()
    with state.stage("read", f"Reading the data ({config.data.path or config.data.source})"):
        data = stages.read_data(config, workspace, state.memory.fresh)
    for words in data.findings():
        display().note(words)
    if state.interrupted:
        _check_data_unchanged(state.interrupted, state, data)
    if state.config.model.init:
        data = _find_initial_weights(state, data)
    if state.config.preset:
        _plan(state, data)
    state.config = ingestion.resolve(state.config, data)
    with state.stage("prepare", "Decoding the images"):
        registered_models.check_classes(str(state.config.name), data.classes)
        prepared: PreparedData = stages.step(
            stages.decode_images, state.config, data, state.memory, after=data
        )
        if prepared.reused:
            display().note("nothing changed: the images decoded before are used again")
    return data, prepared


def _find_initial_weights(state: RunState, data: IngestedData) -> IngestedData:
    """Let the settings follow the initial weights, and show what they are.

    Returns:
        The data with what the weights have seen of it.
    """
    with state.stage("initialize", f"Finding the initial weights ({state.config.model.init})"):
        workspace = state.memory.workspace
        found: StartingPoint = stages.step(
            stages.find_initial_weights, state.config, data, workspace, after=data
        )
        mirroring = notes_on_mirroring_weights(state.config, found.config, data.mirror)
        seen = notes_on_seen(found.seen_before, data.counts)
        for line in (*found.notes(), *seen, *mirroring):
            display().note(line)
    state.start, state.config = found, found.config
    data = data.model_copy(update={"notes": (*data.notes, *mirroring)})
    return with_seen(data, found.seen_before)


def _plan(state: RunState, data: IngestedData) -> None:
    """Replace the preset by the settings of its plan, and show them with their reasons."""
    with state.stage("plan", run_messages.planning_title(state.config)):
        made: Plan = stages.step(stages.plan_training, state.config, data, state.memory, after=data)
        for line in made.lines():
            display().note(line)
    state.plan, state.config = made, planning.with_plan(state.config, made)


def _check_data_unchanged(interrupted: InterruptedRun, state: RunState, data: IngestedData) -> None:
    """Make sure that a run is not continued with other data than it started with."""
    before = interrupted.request.data_fingerprint
    if data.fingerprint == before:
        return
    changed = (
        f"The data has changed since the run {interrupted.run_id[:8]} started (version "
        f"{before[:12]} then, {data.fingerprint[:12]} now), so it cannot be continued."
    )
    if state.fallback is None:
        raise DataError(f"{changed} Start a new run.")
    display().note(f"{changed} A new run is started.")
    state.interrupted, (state.config, state.memory) = None, state.fallback
    state.plan = None


@contextmanager
def _opened(state: RunState, data: IngestedData) -> Iterator[tracked_run.TrackedRun]:
    """Open a new run, or reopen the interrupted one."""
    same = state.interrupted
    with _same_run(same, state, data) if same else _new_run(state, data) as run:
        state.run = run
        state.memory.enter(run.run_id, run.folder)
        state.tag_reuse(run)
        run_messages.tag_flow_run(run, state.config)
        started = {"name": str(state.config.name), "run_id": run.run_id, "data": data.fingerprint}
        _emit(event_kinds.RUN_STARTED, f"run.{run.run_id}", **started)
        yield run


def _new_run(state: RunState, data: IngestedData) -> AbstractContextManager[tracked_run.TrackedRun]:
    request = RunRequest(
        config=state.config,
        plan=state.plan.model_dump(mode="json") if state.plan else None,
        data_fingerprint=data.fingerprint,
        plugin_files=tuple(str(file) for file in plugin_files()),
        fresh=state.memory.fresh,
        code=interrupted_runs.library_code(),
    )
    runs = state.memory.workspace / "runs"
    text = request.model_dump_json(indent=2)
    return tracked_run.owned_run(state.config, runs, _run_tags(state, data), text)


def _same_run(
    interrupted: InterruptedRun, state: RunState, data: IngestedData
) -> AbstractContextManager[tracked_run.TrackedRun]:
    flow_runs = f"{interrupted.flow_runs},{flow_run.id}"
    tags = {**_run_tags(state, data), tracked_run.FLOW_RUNS_TAG: flow_runs}
    params = state.config.flat()
    return tracked_run.continued_run(interrupted.run_id, interrupted.folder, params, tags)


def _train_and_register(
    state: RunState, run: tracked_run.TrackedRun, data: IngestedData, prepared: PreparedData
) -> RunSummary:
    config, memory = state.config, state.memory
    prepare_stage.remember_prepared(config, data, prepared, memory)
    launching.log_config(config, run)
    if state.plan:
        planning.log_plan(state.plan, run)
    tracked_run.log_data(run, data.name, data.fingerprint, data.manifest_file)
    with state.stage("train", f"Training {run_messages.training_recipe(config)}"):
        trained: TrainResult = stages.step(
            stages.train_model, config, data, prepared, run, memory, after=prepared
        )
    tracked_run.set_tags(run, run_parts.tags(trained))
    config, config_file = launching.record_training(config, trained, run)
    if not data.classes:
        state.config = config
        summary = encoder_stages.register_encoder(
            state, run, data, prepared, trained, _prefect_tags(), config_file
        )
        write_text(run.folder / SUMMARY_FILE, summary.model_dump_json(indent=2))
        return summary
    model_id = registration.logged_model(run, str(config.name))
    with state.stage("evaluate", run_messages.evaluation_title(config, data, trained)):
        evaluated: Evaluated = stages.step(
            stages.evaluate_model, config, data, prepared, trained, run, memory, after=trained
        )
        registration.log_report_metrics(run, model_id, evaluated.report, data.name)
        test_images = {TEST_IMAGES_TAG: evaluated.report.images_fingerprint}
        tracked_run.set_tags(run, test_images)
        if evaluated.report.warning:
            display().note(evaluated.report.warning)
        pages = evaluated.folder / EXPLANATIONS
        for kind, folder in (("report", evaluated.folder), (f"report/{EXPLANATIONS}", pages)):
            for file in sorted(folder.glob("*.*")):
                tracked_run.log_file(run, file, kind)
    with state.stage("package", "Packaging the model and checking the package"):
        card = stages.card_facts(config, data, trained, evaluated.report.metrics, state.start)
        inputs = (config, data, prepared, trained, evaluated, card, run, memory)
        package: Package = stages.step(stages.package_model, *inputs, after=evaluated)
    with state.stage("register", f"Registering '{config.name}'"):
        tags = {**_prefect_tags(), **test_images}
        named = (run, model_id, str(config.name), package, tags)
        registered: Registered = stages.step(stages.register_model, *named, after=package)
        made = {"name": registered.name, "version": registered.version, "run_id": run.run_id}
        accuracy = evaluated.report.metrics["test/accuracy"].value
        _emit(event_kinds.MODEL_REGISTERED, f"model.{registered.name}", **made, accuracy=accuracy)
    with state.stage("promote", "Assigning the aliases"):
        promotion, approval = _promote(config, registered, run)
    aliases = registered_models.aliases(registered.name, registered.version)
    page = run_messages.flow_page()
    outcome = Outcome(run, config, data, trained, evaluated, registered, aliases, promotion, page)
    run_messages.publish(outcome)
    summary = summary_of(outcome, state.seconds, config_file, approval, memory.reused)
    write_text(run.folder / SUMMARY_FILE, summary.model_dump_json(indent=2))
    return summary


def _promote(
    config: RunConfig, registered: Registered, run: tracked_run.TrackedRun
) -> tuple[Promotion | None, str]:
    """Assign the version's aliases, and request an approval where the config asks for one."""
    tracked_run.check_owner(run)
    folder = run.folder / "promotion"
    promotion: Promotion | None = stages.step(
        stages.assign_aliases, config, registered, folder, after=registered
    )
    if promotion:
        events.emit_decision(promotion)
    if config.promotion.approval and not (promotion and promotion.promoted):
        return promotion, requests.request_approval(registered.reference, config.promotion) or ""
    return promotion, ""


def _saved_summary(finished: InterruptedRun) -> RunSummary:
    file = finished.folder / SUMMARY_FILE
    return RunSummary.model_validate_json(file.read_text(encoding="utf-8"))


def _report_failure(state: RunState, error: BaseException) -> None:
    """Report that the run failed or was killed, and how it can be resumed."""
    if isinstance(error, TakenOverError):
        return  # the run continues in another process
    failed = isinstance(error, Exception)
    run_id = state.run.run_id if state.run else ""
    _emit(
        event_kinds.RUN_FAILED if failed else event_kinds.RUN_KILLED,
        f"run.{run_id or flow_run.id}",
        name=state.config.name or run_messages.data_name(state.config),
        run_id=run_id,
        reason=str(error) if failed else "it was stopped by a signal",
    )
    if run_id:
        display().note(f"resume it with: patchline run --resume {run_id[:8]}")
    elif not failed:
        display().note("it was stopped before training started, so there is nothing to resume")


def _run_tags(state: RunState, data: IngestedData) -> dict[str, str]:
    tags = {**_prefect_tags(), tracked_run.DATA_ROOT_TAG: str(data.root)}
    if seen := notes_on_seen(data.seen_before, data.counts):
        tags[tracked_run.SEEN_TAG] = "; ".join(seen)
    return {**tags, **state.start.tags()} if state.start else tags


def _prefect_tags() -> dict[str, str]:
    return {tracked_run.FLOW_RUN_TAG: str(flow_run.id or "")}
