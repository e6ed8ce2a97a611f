"""The training flow: from a config to a registered model.

One MLflow run owns the whole line. A flow run that is tried again by Prefect, and one that resumes
a run by its id, continue that run from the stage that failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.approval import questions
from flows.closing import close_runs
from flows.failures import failed
from flows.notifications import events
from flows.progress import display
from flows.training import ahead, run_words, stages
from flows.training.run_summary import RunSummary
from pipeline import quiet_libraries, redaction
from pipeline.browsing.outcome import Outcome
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.errors import DataError, PipelineError
from pipeline.evaluation.evaluating import Evaluated
from pipeline.files.atomic_files import write_text
from pipeline.packaging.job import Package
from pipeline.packaging.model_card import CardFacts
from pipeline.plugin_system import plugin_settings
from pipeline.plugin_system.plugin_loader import plugin_files
from pipeline.redaction import redacted
from pipeline.registry import registered_models, registration
from pipeline.registry.promotion import Promotion
from pipeline.registry.registration import Registered
from pipeline.run_memory import interrupted_runs, live_runs
from pipeline.run_memory.interrupted_runs import SUMMARY_FILE, InterruptedRun, RunRequest
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.tracking import provenance, tracked_run, tracking_store
from pipeline.training import launching
from pipeline.training.train_result import TrainResult
from pipeline.workers import worker_start
from pipeline.workspace import WORKSPACE

REUSED_TAG = "patchline.reused"
"""With a stage after it: the run whose result was used instead of computing it again."""


@dataclass
class _Line:
    """What a run knows on its way from the data to the model."""

    config: RunConfig
    memory: StageMemory
    interrupted: InterruptedRun | None
    afresh: tuple[RunConfig, StageMemory] | None = None
    """What to begin a new run with, if the data is no longer that of the interrupted one."""
    seconds: dict[str, float] = field(default_factory=dict)
    run: tracked_run.TrackedRun | None = None

    @contextmanager
    def stage(self, key: str, words: str) -> Iterator[None]:
        """Name a stage on the display and measure its seconds."""
        display().stage(words)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[key] = round(time.monotonic() - began, 2)
        if self.run:
            self.tag_reuse(self.run)

    def tag_reuse(self, run: tracked_run.TrackedRun) -> None:
        """Write on the run which stages were not computed again."""
        tags = {f"{REUSED_TAG}.{stage}": source for stage, source in self.memory.reused.items()}
        if tags:
            tracked_run.set_tags(run, tags)


@flow(
    name="Train and register",
    flow_run_name=run_words.flow_name,
    description=run_words.FLOW_DESCRIPTION,
    on_crashed=[close_runs.on_crashed],
    on_cancellation=[close_runs.on_cancellation],
)
def training_flow(config: RunConfig, resume: str | None = None, fresh: bool = False) -> RunSummary:
    """Read the data, train, evaluate, package and register: one MLflow run owns the whole line.

    Args:
        config: everything that decides what is computed.
        resume: id of a run that failed or was killed, which is continued instead.
        fresh: compute every stage, whatever earlier runs have done.
    """
    quiet_libraries.apply()  # a worker starts the flow without the command line
    redaction.install()
    workspace = WORKSPACE.resolve()
    flow_run_id = str(flow_run.id)
    with live_runs.alive(workspace, flow_run_id, "training"), worker_start.prepared_workers():
        ahead.training()
        try:
            interrupted = (
                interrupted_runs.find(resume, workspace / "runs")
                if resume
                else interrupted_runs.of_flow_run(flow_run_id, workspace / "runs")
            )
            if interrupted and interrupted.finished:  # only its last word did not reach Prefect
                return _summary_of(interrupted)
            line = _line(config, StageMemory(workspace, fresh=fresh, on_note=display().note))
            if interrupted:
                line = _continued(interrupted, line, by_hand=bool(resume))
            return _whole_line(line)
        except PipelineError as error:
            return failed(error)  # type: ignore[return-value]  # Prefect raises it


def _line(config: RunConfig, memory: StageMemory) -> _Line:
    return _Line(plugin_settings.checked_plugins(config), memory, None)


def _continued(interrupted: InterruptedRun, new: _Line, *, by_hand: bool) -> _Line:
    """Return the line of an interrupted run; a person who asks for it wants that one or none."""
    display().note(f"continuing run {interrupted.run_id[:8]}")
    if interrupted.code_changed:
        display().note("the code has changed since it began; what is left runs with the new one")
    fresh = interrupted.request.fresh
    memory = StageMemory(new.memory.workspace, fresh=fresh, on_note=display().note)
    memory.enter(interrupted.run_id, interrupted.folder)
    line = _line(interrupted.request.config, memory)
    line.interrupted = interrupted
    line.afresh = None if by_hand else (new.config, new.memory)
    return line


def _whole_line(line: _Line) -> RunSummary:
    """Go through all stages, and say how it ended."""
    try:
        data, prepared = _read_and_prepare(line)
        with _opened(line, data) as run:
            summary = _train_and_register(line, run, data, prepared)
    except BaseException as error:
        _tell_end(line, error)
        raise
    accuracy = summary.metrics["test/accuracy"].value
    payload = {
        "name": summary.name,
        "run_id": summary.run_id,
        "version": summary.version,
        "accuracy": accuracy,
        "seconds": round(sum(summary.seconds.values()), 1),
    }
    events.emit(events.RUN_FINISHED, f"patchline.run.{summary.run_id}", payload)
    return summary


def _read_and_prepare(line: _Line) -> tuple[IngestedData, PreparedData]:
    config, workspace = line.config, line.memory.workspace
    with line.stage("read", f"Reading the data ({config.data.path or config.data.source})"):
        data = stages.read_data(config, workspace)
    run_words.note_data(data)
    if line.interrupted:
        _hold_against(line.interrupted, line, data)
    line.config = ingestion.resolve(line.config, data)
    with line.stage("prepare", "Decoding the images"):
        registered_models.check_classes(str(line.config.name), data.classes)
        prepared: PreparedData = stages.step(
            stages.decode_images, line.config, data, line.memory, after=data
        )
        run_words.note_reuse(prepared)
    return data, prepared


def _hold_against(interrupted: InterruptedRun, line: _Line, data: IngestedData) -> None:
    """See to it that a run does not go on with other data than it began with."""
    before = interrupted.request.data_fingerprint
    if data.fingerprint == before:
        return
    changed = (
        f"The data has changed since the run {interrupted.run_id[:8]} began (version "
        f"{before[:12]} then, {data.fingerprint[:12]} now), so it cannot be continued."
    )
    if line.afresh is None:
        raise DataError(f"{changed} Start a new run.")
    display().note(f"{changed} A new run is started.")
    line.interrupted, (line.config, line.memory) = None, line.afresh


@contextmanager
def _opened(line: _Line, data: IngestedData) -> Iterator[tracked_run.TrackedRun]:
    """Open a new run, or the interrupted one again."""
    same = line.interrupted
    with _same_run(same, line, data) if same else _new_run(line, data) as run:
        line.run = run
        line.memory.enter(run.run_id, run.folder)
        line.tag_reuse(run)
        run_words.tag_flow_run(run, line.config)
        payload = {
            "name": str(line.config.name),
            "run_id": run.run_id,
            "data": data.fingerprint,
        }
        events.emit(events.RUN_STARTED, f"patchline.run.{run.run_id}", payload)
        yield run


def _new_run(line: _Line, data: IngestedData) -> AbstractContextManager[tracked_run.TrackedRun]:
    request = RunRequest(
        config=line.config,
        data_fingerprint=data.fingerprint,
        plugin_files=tuple(str(file) for file in plugin_files()),
        fresh=line.memory.fresh,
        code=interrupted_runs.library_code(),
    )
    runs = line.memory.workspace / "runs"
    text = request.model_dump_json(indent=2)
    return tracked_run.owned_run(line.config, runs, _run_tags(data), text)


def _same_run(
    interrupted: InterruptedRun, line: _Line, data: IngestedData
) -> AbstractContextManager[tracked_run.TrackedRun]:
    flow_runs = f"{interrupted.flow_runs},{flow_run.id}"
    tags = {**_run_tags(data), tracked_run.FLOW_RUNS_TAG: flow_runs}
    params = line.config.flat()
    return tracked_run.continued_run(interrupted.run_id, interrupted.folder, params, tags)


def _train_and_register(
    line: _Line, run: tracked_run.TrackedRun, data: IngestedData, prepared: PreparedData
) -> RunSummary:
    config, memory = line.config, line.memory
    stages.remember_prepared(memory, config, data, prepared)
    launching.log_config(config, run)
    tracked_run.log_data(run, data.name, data.fingerprint, data.manifest_file)
    with line.stage("train", run_words.training_words(config)):
        trained: TrainResult = stages.step(
            stages.train_model, config, data, prepared, run, memory, after=prepared
        )
    config, config_file = _record_training(config, trained, run)
    model_id = registration.logged_model(run, str(config.name))
    with line.stage("evaluate", "Evaluating on the test images"):
        evaluated: Evaluated = stages.step(
            stages.evaluate_model, config, data, prepared, trained, run, memory, after=trained
        )
        registration.log_report_metrics(run, model_id, evaluated.report, data.name)
        _log_report(run, evaluated)
    with line.stage("package", "Packaging the model and checking the package"):
        card = _card(config, data, trained, evaluated)
        inputs = (config, data, prepared, trained, evaluated, card, run, memory)
        package: Package = stages.step(stages.package_model, *inputs, after=evaluated)
    with line.stage("register", f"Registering '{config.name}'"):
        named = (run, model_id, str(config.name), package, _prefect_tags())
        registered: Registered = stages.step(stages.register_model, *named, after=package)
        _tell_registered(run, registered, evaluated)
    with line.stage("promote", "Giving the version its aliases"):
        promotion, approval = _promote(config, registered, run)
    aliases = registered_models.aliases(registered.name, registered.version)
    outcome = Outcome(
        run, config, data, trained, evaluated, registered, aliases, promotion, run_words.flow_page()
    )
    run_words.publish(outcome)
    return _summary(line, outcome, config_file, approval)


def _promote(
    config: RunConfig, registered: Registered, run: tracked_run.TrackedRun
) -> tuple[Promotion | None, str]:
    """Give the version its aliases, and ask a person where the config says so."""
    folder = run.folder / "promotion"
    promotion: Promotion | None = stages.step(
        stages.welcome_version, config, registered, folder, after=registered
    )
    if promotion:
        events.tell_decision(promotion)
    if config.promotion.approval and not (promotion and promotion.promoted):
        words = questions.ask(registered.reference, config.promotion) or ""
        return promotion, words
    return promotion, ""


def _summary(line: _Line, outcome: Outcome, config_file: Path, approval: str) -> RunSummary:
    """Write down what the run leaves behind."""
    run, data, registered = outcome.run, outcome.data, outcome.registered
    summary = RunSummary(
        run_id=run.run_id,
        name=registered.name,
        version=registered.version,
        aliases=outcome.aliases,
        status="FINISHED",
        seconds=line.seconds,
        metrics=outcome.evaluated.report.metrics,
        report=str(outcome.evaluated.html),
        tracking_uri=redacted(tracking_store.use_store()),
        config=str(config_file),
        data_fingerprint=data.fingerprint,
        example_image=data.example_image,
        notes=data.notes,
        promotion=outcome.promotion,
        approval=approval,
        reused=line.memory.reused,
    )
    write_text(run.folder / SUMMARY_FILE, summary.model_dump_json(indent=2))
    return summary


def _summary_of(finished: InterruptedRun) -> RunSummary:
    file = finished.folder / SUMMARY_FILE
    return RunSummary.model_validate_json(file.read_text(encoding="utf-8"))


def _tell_registered(
    run: tracked_run.TrackedRun, registered: Registered, evaluated: Evaluated
) -> None:
    payload = {
        "name": registered.name,
        "version": registered.version,
        "run_id": run.run_id,
        "accuracy": evaluated.report.metrics["test/accuracy"].value,
    }
    events.emit(events.MODEL_REGISTERED, f"patchline.model.{registered.name}", payload)


def _tell_end(line: _Line, error: BaseException) -> None:
    """Say that the run ended before its time, and how it can be continued."""
    failed = isinstance(error, Exception)
    run_id = line.run.run_id if line.run else ""
    payload = {
        "name": line.config.name or run_words.data_name(line.config),
        "run_id": run_id,
        "reason": str(error) if failed else "it was stopped by a signal",
    }
    event = events.RUN_FAILED if failed else events.RUN_KILLED
    events.emit(event, f"patchline.run.{run_id or flow_run.id}", payload)
    if run_id:
        display().note(f"continue it with: patchline run --resume {run_id[:8]}")
    elif not failed:
        display().note("it was stopped before its training began, so there is nothing to continue")


def _run_tags(data: IngestedData) -> dict[str, str]:
    return {**_prefect_tags(), tracked_run.DATA_ROOT_TAG: str(data.root)}


def _prefect_tags() -> dict[str, str]:
    return {tracked_run.FLOW_RUN_TAG: str(flow_run.id or "")}


def _record_training(
    config: RunConfig, trained: TrainResult, run: tracked_run.TrackedRun
) -> tuple[RunConfig, Path]:
    """Log what the machine decided, and the config with it, which gives the same run again."""
    kept = ("precision", "device", "threads", "parameters", "stopped_because", "steps")
    tracked_run.set_tags(run, {f"training.{key}": str(getattr(trained, key)) for key in kept})
    replayable = launching.replayable(config, trained)
    return replayable, launching.log_config(replayable, run)


def _card(
    config: RunConfig, data: IngestedData, trained: TrainResult, evaluated: Evaluated
) -> CardFacts:
    return CardFacts(
        name=str(config.name),
        images=data.counts,
        metrics=evaluated.report.metrics,
        training=f"{trained.steps} steps on {trained.device}, {trained.precision}",
        commit=provenance.commit()[0][:12],
    )


def _log_report(run: tracked_run.TrackedRun, evaluated: Evaluated) -> None:
    if evaluated.report.warning:
        display().note(evaluated.report.warning)
    for file in sorted(evaluated.folder.iterdir()):
        tracked_run.log_file(run, file, "report")
