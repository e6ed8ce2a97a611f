"""Evaluate a run without labels: test the objective, then write the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.seen_images import about_test_images
from patchline.pipeline.evaluation.evaluating import about_run
from patchline.pipeline.evaluation.html_page import picture, render, vector_graphic
from patchline.pipeline.evaluation.html_report import ReportPage
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, mean_of_repeats
from patchline.pipeline.evaluation.plots import training_curves
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import OnEvent
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.plugin_api import ImageSpec


class PretrainingJob(FrozenModel):
    """What was trained, the images to test it on, and the folder for the results."""

    config: RunConfig
    """Settings of the run, resolved against the data."""
    trained: Path
    """Folder of the weights."""
    manifest_file: Path
    store: Path
    image: ImageSpec
    device: str
    folder: Path


class ViewFile(FrozenModel):
    """The file of one view of one image."""

    title: str
    file: str
    """Name in the folder of the result."""


class PicturedImage(FrozenModel):
    """An image and its views."""

    path: str
    """Path as the manifest states it."""
    views: tuple[ViewFile, ...]


class PretrainingResult(FrozenModel):
    """The losses of the test images, and pictures of the first ones."""

    losses: tuple[float, ...]
    """Loss of each test image; of each batch, if the objective computes no loss of one image."""
    images: int
    pictures: tuple[PicturedImage, ...]
    seconds: float


LOSS = "test/loss"
HTML_FILE, JSON_FILE = "report.html", "report.json"


class PretrainingReport(FrozenModel):
    """The result of a pre-training on the test images."""

    name: str
    """Name of the registered encoder."""
    objective: str
    data_fingerprint: str
    images: int
    metrics: dict[str, MetricEstimate]
    """The mean loss, `test/loss`, with its t interval."""
    pictures: tuple[PicturedImage, ...]

    @property
    def loss(self) -> MetricEstimate:
        """Mean loss of the test images."""
        return self.metrics[LOSS]

    @property
    def warning(self) -> str:
        """Nothing: only a classifier that starts from an encoder shows how good it is."""
        return ""


TESTING = Worker("patchline.pipeline.training.pretraining", PretrainingJob, PretrainingResult)
_PATHS: dict[str, Any] = {"best": True}
_UNLIMITED = (0.0, float("inf"))


class PretrainingEvaluated(FrozenModel):
    """The report and its files."""

    report: PretrainingReport
    folder: Path
    html: Path


def ingredients(run: TrainedRun) -> Ingredients:
    """Return everything that determines the report."""
    return {
        **run.ingredients,
        **stage_keys.all_settings(run.config),
        **stage_keys.software(run.config, "objective"),
        "notes": "\n".join((run.data.split_origin, *run.data.notes)),
        "training": run.trained.model_dump_json(exclude=_PATHS),
    }


def evaluate_encoder(run: TrainedRun, folder: Path, on_event: OnEvent) -> PretrainingEvaluated:
    """Test what was pre-trained and write the report.

    Args:
        run: the training with the best weights.
        folder: the folder that receives `report.html`, `report.json` and the pictures.
        on_event: called with every event, for a progress display.
    """
    config, data, trained = run.config, run.data, run.trained
    job = PretrainingJob(
        config=config,
        trained=trained.best.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=run.prepared.store.resolve(),
        image=run.prepared.image,
        device=trained.device,
        folder=folder.resolve(),
    )
    resources = Resources.for_device(trained.device)
    tested = TESTING.run(folder.parent / "testing", job, on_event, resources)
    report = PretrainingReport(
        name=str(config.name),
        objective=config.objective.name,
        data_fingerprint=data.fingerprint,
        images=tested.images,
        metrics={LOSS: _mean(tested.losses)},
        pictures=tested.pictures,
    )
    preview = trained.best.parent / "augmentation_preview.png"
    page = ReportPage(
        title=f"{config.name}: pre-training report",
        lead=about_test_images(data.seen_before),
        facts={
            **about_run(run),
            "Best weights": f"epoch {trained.best_epoch:.4g}, validation loss "
            f"{trained.best_validation_loss:.4g}",
        },
        notes=data.notes,
        settings=stage_keys.all_settings(config),
    )
    history = [record.model_dump() for record in trained.history]
    report.to_file(folder / JSON_FILE)
    text = render(
        "pretraining.html.j2",
        package=__package__,
        report=report,
        page=page,
        images=[
            (image.path, [(view.title, picture(folder / view.file)) for view in image.views])
            for image in report.pictures
        ],
        curves=vector_graphic(training_curves(history, ("loss",))) if history else "",
        preview=picture(preview) if preview.exists() else "",
    )
    write_text(folder / HTML_FILE, text)
    return PretrainingEvaluated(report=report, folder=folder, html=folder / HTML_FILE)


def _mean(losses: tuple[float, ...]) -> MetricEstimate:
    """Return the mean of the losses with its t interval; of a single one, the value alone."""
    if len(losses) == 1:
        return MetricEstimate(value=losses[0], low=losses[0], high=losses[0], n=1)
    return mean_of_repeats(losses, _UNLIMITED)
