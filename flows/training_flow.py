"""The training flow: from a config to a registered model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import flow
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows import stages
from flows.progress import display
from pipeline import plugin_settings, provenance, tracking, tracking_store
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.evaluation.evaluating import Evaluated
from pipeline.metrics.intervals import MetricEstimate
from pipeline.registry import registered_models, registering
from pipeline.registry.model_card import CardFacts
from pipeline.registry.promoting import Promotion
from pipeline.registry.registering import Registered
from pipeline.section import Section
from pipeline.train_result import TrainResult
from pipeline.training import launching

WORKSPACE = Path(".patchline")


class RunSummary(Section):
    """What a run leaves behind; `patchline run --json` prints it."""

    run_id: str
    name: str
    version: str
    aliases: tuple[str, ...]
    status: str
    seconds: dict[str, float]
    """By stage."""
    metrics: dict[str, MetricEstimate]
    report: str
    """Path of the HTML report."""
    tracking_uri: str
    config: str
    """Path of the resolved config."""
    data_fingerprint: str
    example_image: str
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    promotion: Promotion | None
    """What was decided about the champion; none if a person has to decide."""


class _Stopwatch:
    """Seconds by stage, and a line on the display when one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, key: str, words: str) -> Iterator[None]:
        display().stage(words)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[key] = round(time.monotonic() - began, 2)


@flow(name="Train and register")
def training_flow(config: RunConfig) -> RunSummary:
    """Read the data, train, evaluate, package and register: one MLflow run owns the whole line."""
    workspace = WORKSPACE.resolve()
    watch = _Stopwatch()
    config = plugin_settings.checked_plugins(config)
    with watch.stage("read", f"Reading the data ({config.data.path or config.data.source})"):
        data = stages.read_data(config, workspace)
    _note_data(data)
    config = ingestion.resolve(config, data)
    with watch.stage("prepare", "Decoding the images"):
        registered_models.check_classes(str(config.name), data.classes)
        prepared = stages.decode_images(config, data, workspace)
        _note_reuse(prepared)
    with tracking.owned_run(config, workspace / "runs", _run_tags(data)) as run:
        _tag_flow_run(run, str(config.name))
        launching.log_config(config, run)
        tracking.log_data(run, data.name, data.fingerprint, data.manifest_file)
        with watch.stage("train", _training_words(config)):
            trained = stages.train_model(config, data, prepared, run)
        config, config_file = _record_training(config, trained, run)
        model_id = registering.create_logged_model(run, str(config.name))
        with watch.stage("evaluate", "Evaluating on the test images"):
            evaluated = stages.evaluate_model(
                config, data, prepared, trained, run.folder / "report"
            )
            registering.log_report_metrics(run, model_id, evaluated.report, data.name)
            _log_report(run, evaluated)
        with watch.stage("package", "Packaging the model and checking the package"):
            card = _card(config, data, trained, evaluated)
            package = stages.package_model(
                trained, data, prepared, evaluated, card, run.folder / "package"
            )
        with watch.stage("register", f"Registering '{config.name}'"):
            registered = stages.register_model(
                run, model_id, str(config.name), package, _prefect_tags()
            )
        with watch.stage("promote", "Giving the version its aliases"):
            promotion = stages.welcome_version(config, registered, run.folder / "promotion")
        aliases = registered_models.aliases(registered.name, registered.version)
        _publish(run, evaluated, registered, aliases, promotion)
    return RunSummary(
        run_id=run.run_id,
        name=registered.name,
        version=registered.version,
        aliases=aliases,
        status="FINISHED",
        seconds=watch.seconds,
        metrics=evaluated.report.metrics,
        report=str(evaluated.html),
        tracking_uri=tracking_store.without_credentials(tracking_store.use_store()),
        config=str(config_file),
        data_fingerprint=data.fingerprint,
        example_image=data.example_image,
        notes=data.notes,
        promotion=promotion,
    )


def _note_data(data: IngestedData) -> None:
    total = sum(data.counts.values())
    parts = ", ".join(f"{count} {split}" for split, count in data.counts.items())
    display().note(f"{total} images in {len(data.classes)} classes: {parts}")
    for note in data.notes:
        display().note(note)


def _note_reuse(prepared: PreparedData) -> None:
    if prepared.reused:
        display().note("nothing changed: the images decoded before are used again")


def _training_words(config: RunConfig) -> str:
    length = config.training.time_limit or f"{config.training.epochs} epochs"
    if config.training.step_plan:
        length = f"{config.training.step_plan[-1][2]} steps, as recorded"
    return f"Training {' with '.join(config.model.names)} for {length}"


def _run_tags(data: IngestedData) -> dict[str, str]:
    return {**_prefect_tags(), tracking.DATA_ROOT_TAG: str(data.root)}


def _prefect_tags() -> dict[str, str]:
    return {tracking.FLOW_RUN_TAG: str(flow_run.id or "")}


def _tag_flow_run(run: tracking.TrackedRun, name: str) -> None:
    """Name the flow run after the data, and lead from Prefect to MLflow."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(
            flow_run.id, name=f"{name} {run.run_id[:8]}", tags=["patchline", f"mlflow:{run.run_id}"]
        )


def _record_training(
    config: RunConfig, trained: TrainResult, run: tracking.TrackedRun
) -> tuple[RunConfig, Path]:
    """Log what the machine decided, and the config with it, which gives the same run again."""
    kept = ("precision", "device", "threads", "parameters", "stopped_because", "steps")
    tracking.set_tags(run, {f"training.{key}": str(getattr(trained, key)) for key in kept})
    replayable = launching.replayable(config, trained)
    return replayable, launching.log_config(replayable, run)


def _card(
    config: RunConfig, data: IngestedData, trained: TrainResult, evaluated: Evaluated
) -> CardFacts:
    return CardFacts(
        name=str(config.name),
        images=data.counts,
        figures=evaluated.report.metrics,
        training=f"{trained.steps} steps on {trained.device}, {trained.precision}",
        commit=provenance.commit()[0][:12],
    )


def _log_report(run: tracking.TrackedRun, evaluated: Evaluated) -> None:
    if evaluated.report.warning:
        display().note(evaluated.report.warning)
    for file in sorted(evaluated.folder.iterdir()):
        tracking.log_file(run, file, "report")


def _promotion_words(promotion: Promotion | None) -> str:
    if promotion is None:
        return "Whether it becomes champion is for a person to decide."
    verdict = "Champion" if promotion.promoted else "Not promoted"
    return f"{verdict}: {promotion.reason}."


def _publish(
    run: tracking.TrackedRun,
    evaluated: Evaluated,
    registered: Registered,
    aliases: tuple[str, ...],
    promotion: Promotion | None,
) -> None:
    """Write the summary, the figures and the way to MLflow into the Prefect UI."""
    report = evaluated.report
    accuracy = report.metrics["test/accuracy"]
    create_markdown_artifact(
        key="summary",
        markdown=(
            f"## {registered.name}, version {registered.version}\n\n"
            f"**{accuracy.value:.1%}** of {accuracy.n} test images recognised (95 % interval "
            f"{accuracy.low:.1%} to {accuracy.high:.1%}), {report.errors} errors.\n\n"
            f"Aliases: {', '.join(aliases)}. {_promotion_words(promotion)}\n\n"
            f"Data version `{report.data_fingerprint}`. MLflow run `{run.run_id}`.\n"
        ),
        description="The verdict on this run",
    )
    create_table_artifact(
        key="test-metrics",
        table=[
            {"metric": key, "value": m.value, "low": m.low, "high": m.high, "images": m.n}
            for key, m in report.metrics.items()
        ],
        description="Figures on the test images with 95 % intervals",
    )
    create_link_artifact(
        key="mlflow-run",
        link=tracking.run_page(run),
        link_text="This run in MLflow",
        description="For a local store, start `mlflow ui` in the working directory first.",
    )
