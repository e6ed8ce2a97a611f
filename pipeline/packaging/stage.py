"""The packaging stage of a run: export and check the model in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.evaluation.evaluating import PREDICTIONS_FILE, Evaluated, model_ingredients
from pipeline.files.file_digest import digest_of
from pipeline.metrics.temperature import TemperatureFit
from pipeline.packaging.job import Package, PackagingJob
from pipeline.packaging.model_card import CardFacts
from pipeline.run_memory import stage_keys
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.training.train_result import TrainResult
from pipeline.workers.event_log import Event
from pipeline.workers.worker_process import run_worker

_CODE = ("pipeline.packaging.__main__", "pipeline.packaging.mlflow_classifier", "pipeline.layers")


def package_run(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    evaluated: Evaluated,
    card: CardFacts,
    run_folder: Path,
    memory: StageMemory,
    on_event: Callable[[Event], None],
) -> Package:
    """Package a run's model, or reuse the package of an identical earlier stage.

    Raises:
        PackagingError: if the model cannot be exported, or the package's probability for a test
            image differs from the reported one by more than 1e-4.
    """
    folder, calibration = run_folder / "package", evaluated.report.calibration
    reported = evaluated.folder / PREDICTIONS_FILE
    ingredients = {
        **model_ingredients(config, data, prepared, trained),
        "calibration": calibration.model_dump_json(),
        "reported": digest_of(reported).sha256,
        "card": card.model_dump_json(),
        "code": stage_keys.code(*_CODE),
    }
    return memory.once(
        "package",
        ingredients,
        Package,
        folder,
        lambda: package_model(
            trained.best, data, prepared, folder, on_event, card, calibration, reported
        ),
    )


def package_encoder(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    card: CardFacts,
    run_folder: Path,
    memory: StageMemory,
    on_event: Callable[[Event], None],
) -> Package:
    """Package an encoder that was trained without labels, or reuse an identical package.

    Raises:
        PackagingError: if it cannot be exported, or a feature differs by more than 1e-4.
    """
    folder = run_folder / "package"
    ingredients = {
        **model_ingredients(config, data, prepared, trained),
        "card": card.model_dump_json(),
        "code": stage_keys.code(*_CODE),
    }
    return memory.once(
        "package",
        ingredients,
        Package,
        folder,
        lambda: package_model(trained.best, data, prepared, folder, on_event, card),
    )


def package_model(
    model_folder: Path,
    data: IngestedData,
    prepared: PreparedData,
    folder: Path,
    on_event: Callable[[Event], None],
    card: CardFacts,
    calibration: TemperatureFit | None = None,
    reported: Path | None = None,
) -> Package:
    """Write the package of a trained model, and compare its outputs on all test images.

    Args:
        model_folder: the trained model.
        data: the ingested data.
        prepared: the prepared images.
        folder: receives the package.
        on_event: receives the progress of the comparison.
        card: facts for the model card that are not in the model's description.
        calibration: of a classifier.
        reported: predictions of a classifier, to compare with; an encoder is compared with torch.

    Raises:
        PackagingError: if the model cannot be exported, or an output differs by more than 1e-4.
    """
    job = PackagingJob(
        model_folder=model_folder.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        calibration=calibration,
        reported=reported.resolve() if reported else None,
        folder=folder,
        card=card,
    )
    return run_worker("pipeline.packaging", folder.parent / "packaging", job, Package, on_event)
