"""The packaging stage: export and check in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.event_log import Event
from pipeline.registry.model_card import CardFacts
from pipeline.registry.packaging_job import Package, PackagingJob
from pipeline.worker_process import run_worker


def package_model(
    model_folder: Path,
    data: IngestedData,
    prepared: PreparedData,
    temperature: float,
    folder: Path,
    on_event: Callable[[Event], None],
    card: CardFacts | None = None,
) -> Package:
    """Write the package of a trained model and compare it with the model on real test images.

    `card` holds what its model card tells beyond the model's own description.

    Raises:
        PackagingError: if the model cannot be exported, or the package differs by more than 1e-4.
    """
    job = PackagingJob(
        model_folder=model_folder.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        temperature=temperature,
        folder=folder,
        card=card or CardFacts(),
    )
    return run_worker("pipeline.registry", folder.parent / "packaging", job, Package, on_event)
