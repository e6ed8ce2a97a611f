"""Package the trained model of a run: export it and check the package, in a worker process."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.evaluation.answers_report import REFERENCE_FILE
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.html_report import PREDICTIONS_FILE
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.packaging.job import PACKAGING, Package, PackagingJob
from patchline.pipeline.packaging.model_card import CardFacts
from patchline.pipeline.workers.event_log import OnEvent


def package_model(
    run: TrainedRun,
    evaluated: Evaluated | None,
    card: CardFacts,
    folder: Path,
    on_event: OnEvent,
) -> Package:
    """Write the package of a trained model, and compare its outputs on all test images.

    Args:
        run: the trained model with its images.
        evaluated: the report of a classifier, whose calibration is built in and whose predictions
            are compared with; None for an encoder, which is compared with torch.
        card: facts for the model card that are not in the model's description.
        folder: the folder that receives the package.
        on_event: receives the progress of the comparison.

    Raises:
        PackagingError: if the model cannot be exported, or a probability or feature differs by more
            than 1e-4.
    """
    report = evaluated.report if evaluated else None
    reference = evaluated.folder / REFERENCE_FILE if evaluated else None
    images = evaluated.folder / REFERENCE_IMAGES_FILE if evaluated else None
    job = PackagingJob(
        model_folder=run.trained.best.resolve(),
        manifest_file=run.data.manifest_file.resolve(),
        store=run.prepared.store.resolve(),
        described=report.described if report else {},
        reported=(evaluated.folder / PREDICTIONS_FILE).resolve() if evaluated else None,
        reference=reference.resolve() if reference and reference.is_file() else None,
        reference_images=images.resolve() if images and images.is_file() else None,
        folder=folder,
        card=card,
    )
    return PACKAGING.run(folder.parent / "packaging", job, on_event)
