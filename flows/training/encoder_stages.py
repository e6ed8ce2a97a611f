"""The last stages of a run without labels: test, package and register the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.notifications import events
from flows.progress import display, show_event
from flows.training import run_messages
from flows.training.run_state import RunState
from flows.training.stages import card_facts, ended, register_model, step
from pipeline.automation import event_kinds
from pipeline.browsing.encoder_pages import encoder_summary
from pipeline.browsing.outcome import EncoderOutcome
from pipeline.browsing.run_summary import RunSummary
from pipeline.config import RunConfig
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.packaging import stage as packaging_stage
from pipeline.packaging.job import Package
from pipeline.packaging.model_card import CardFacts
from pipeline.pretraining import stage as pretraining
from pipeline.pretraining.stage import PretrainingEvaluated
from pipeline.registry import promotion, registered_models, registration
from pipeline.registry.registration import Registered
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.tracking import tracked_run
from pipeline.training.train_result import TrainResult

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def register_encoder(
    state: RunState,
    run: tracked_run.TrackedRun,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    tags: dict[str, str],
    config_file: Path,
) -> RunSummary:
    """Test, package and register what was trained without labels.

    Args:
        state: of the run, with its resolved config.
        run: the MLflow run.
        data: the ingested data.
        prepared: the prepared images.
        trained: the training result.
        tags: of the version.
        config_file: the resolved config.
    """
    config, memory, name = state.config, state.memory, str(state.config.name)
    model_id = registration.logged_model(run, name, "image-encoder")
    with state.stage("evaluate", f"Testing the encoder ({data.counts['test']:,} images)"):
        evaluated: PretrainingEvaluated = step(
            test_encoder, config, data, prepared, trained, run, memory, after=trained
        )
        registration.log_report_metrics(run, model_id, evaluated.report, data.name)
        for file in sorted(evaluated.folder.iterdir()):
            tracked_run.log_file(run, file, "report")
    with state.stage("package", "Packaging the encoder and checking the package"):
        card = card_facts(config, data, trained, evaluated.report.metrics, state.start)
        inputs = (config, data, prepared, trained, card, run.folder, memory)
        package: Package = step(package_encoder, *inputs, after=trained)
    with state.stage("register", f"Registering '{name}'"):
        registered: Registered = step(
            register_model, run, model_id, name, package, tags, after=package
        )
        made = {"name": name, "version": registered.version, "run_id": run.run_id}
        events.emit(event_kinds.MODEL_REGISTERED, f"patchline.model.{name}", made)
    with state.stage("promote", "Assigning the alias"):
        step(assign_alias, registered, after=registered)
    aliases = registered_models.aliases(name, registered.version)
    outcome = EncoderOutcome(
        run, config, data, trained, evaluated, registered, aliases, run_messages.flow_page()
    )
    run_messages.publish_encoder(outcome)
    return encoder_summary(outcome, state.seconds, config_file, memory.reused)


@task(
    name="Test the encoder",
    task_run_name=run_messages.evaluate_name,
    cache_policy=NO_CACHE,
)
def test_encoder(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    run: tracked_run.TrackedRun,
    memory: StageMemory,
) -> PretrainingEvaluated | State[PretrainingEvaluated]:
    """Compute the loss of the test images and write the report."""
    inputs = (config, data, prepared, trained, run.folder, memory, show_event)
    return ended(pretraining.evaluate_pretraining(*inputs), memory, "evaluate")


@task(name="Package the encoder", cache_policy=NO_CACHE)
def package_encoder(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    card: CardFacts,
    folder: Path,
    memory: StageMemory,
) -> Package | State[Package]:
    """Export to ONNX and compare with the trained encoder."""
    inputs = (config, data, prepared, trained, card, folder, memory, show_event)
    return ended(packaging_stage.package_encoder(*inputs), memory, "package")


@task(
    name="Assign the version's alias",
    task_run_name=run_messages.assign_aliases_name,
    cache_policy=NO_CACHE,
)
def assign_alias(registered: Registered) -> None:
    """Make the version the challenger: no gate compares encoders."""
    promotion.make_challenger(registered.name, registered.version, display().note)
