"""The stages of a training run as Prefect tasks: each calls one function of the library."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.progress import display, show_event
from pipeline import tracking
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.evaluation import evaluating
from pipeline.evaluation.evaluating import Evaluated
from pipeline.registry import packaging, promoting, registering
from pipeline.registry.model_card import CardFacts
from pipeline.registry.packaging_job import Package
from pipeline.registry.promoting import Promotion
from pipeline.registry.registering import Registered
from pipeline.train_result import TrainResult
from pipeline.training import launching

_RETRIES, _RETRY_SECONDS = 2, 2


def _worth_a_retry(_task: object, _run: object, state: object) -> bool:
    """Retry when a disk or a server failed, not when the user's data is wrong."""
    from pipeline.errors import UserError

    try:
        state.result()  # type: ignore[attr-defined]  # a Prefect state
    except UserError:
        return False
    except OSError:
        return True
    except Exception:  # noqa: BLE001 - anything else is not ours to repeat
        return False
    return False


@task(
    name="Read the data",
    cache_policy=NO_CACHE,
    retries=_RETRIES,
    retry_delay_seconds=_RETRY_SECONDS,
    retry_condition_fn=_worth_a_retry,
)
def read_data(config: RunConfig, workspace: Path) -> IngestedData:
    """List the source, check every image, split."""
    return ingestion.ingest(config, workspace, display().advance)


@task(
    name="Decode the images",
    cache_policy=NO_CACHE,
    retries=_RETRIES,
    retry_delay_seconds=_RETRY_SECONDS,
    retry_condition_fn=_worth_a_retry,
)
def decode_images(config: RunConfig, data: IngestedData, workspace: Path) -> PreparedData:
    """Write the prepared store, unless it exists."""
    return ingestion.prepare(config, data, workspace, display().advance)


@task(name="Train the model", cache_policy=NO_CACHE)
def train_model(
    config: RunConfig, data: IngestedData, prepared: PreparedData, run: tracking.TrackedRun
) -> TrainResult:
    """Train in a process of its own."""
    return launching.train(config, data, prepared, run, show_event)


@task(name="Evaluate on the test images", cache_policy=NO_CACHE)
def evaluate_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    folder: Path,
) -> Evaluated:
    """Predict the test split and write the report."""
    return evaluating.evaluate_run(config, data, prepared, trained, folder, show_event)


@task(name="Package the model", cache_policy=NO_CACHE)
def package_model(
    trained: TrainResult,
    data: IngestedData,
    prepared: PreparedData,
    evaluated: Evaluated,
    card: CardFacts,
    folder: Path,
) -> Package:
    """Export to ONNX and compare with the trained model."""
    temperature = evaluated.report.temperature
    return packaging.package_model(
        trained.best, data, prepared, temperature, folder, show_event, card
    )


@task(name="Register the model", cache_policy=NO_CACHE)
def register_model(
    run: tracking.TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package and register it."""
    return registering.register(run, model_id, name, package, tags)


@task(name="Give the version its aliases", cache_policy=NO_CACHE)
def welcome_version(config: RunConfig, registered: Registered, folder: Path) -> Promotion | None:
    """Make the version challenger, and champion if the config lets it."""
    return promoting.welcome(registered.reference, config.promotion, folder, display().note)
