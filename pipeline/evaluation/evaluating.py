"""The evaluation stage: predict in a process of its own, then write the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.data.prepared_store import open_images
from pipeline.evaluation import figures, html_report
from pipeline.evaluation.html_report import ReportPage
from pipeline.evaluation.predictions import PredictionJob, PredictionResult
from pipeline.evaluation.report import EvaluationReport, evaluate, save
from pipeline.event_log import Event
from pipeline.section import Section
from pipeline.train_result import TrainResult
from pipeline.worker_process import run_worker


class Evaluated(Section):
    """The report and the files that show it."""

    report: EvaluationReport
    folder: Path
    html: Path


def evaluate_run(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    folder: Path,
    on_event: Callable[[Event], None],
) -> Evaluated:
    """Predict validation and test with the best weights, and write report and figures.

    Args:
        config: resolved.
        data: the manifest.
        prepared: the store.
        trained: where the best weights are.
        folder: gets `report.html`, `report.json`, `predictions.parquet` and the pictures.
        on_event: sees the progress of the prediction.
    """
    job = PredictionJob(
        model_folder=trained.best.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        splits=("validation", "test"),
        device=trained.device,
        file=folder / "predictions.parquet",
    )
    predicted = run_worker(
        "pipeline.evaluation", folder.parent / "prediction", job, PredictionResult, on_event
    )
    report = evaluate(
        predicted.file,
        name=str(config.name),
        classes=data.classes,
        data_fingerprint=data.fingerprint,
    )
    save(report, folder / "report.json")
    images = open_images(prepared.store)
    history = [record.model_dump() for record in trained.history]
    confusion = figures.confusion_figure(report, folder / figures.CONFUSION)
    curves = figures.curves_figure(history, folder / figures.CURVES)
    figures.errors_figure(report.most_confident_errors, images, folder / figures.ERRORS)
    html = folder / "report.html"
    pictures = {"Confusion matrix": confusion, "Training": curves}
    preview = trained.best.parent / "augmentation_preview.png"
    if preview.exists():
        pictures["What the augmentation does: original first, then eight epochs"] = preview
    page = _page(config, data, prepared, trained)
    html_report.write_html(report, page, images, pictures, html)
    return Evaluated(report=report, folder=folder, html=html)


def _page(
    config: RunConfig, data: IngestedData, prepared: PreparedData, trained: TrainResult
) -> ReportPage:
    image, counts = prepared.image, data.counts
    colours = "greyscale" if image.channels == 1 else "colour"
    facts = {
        "Images": f"{counts['train']} to train, {counts['validation']} to choose, "
        f"{counts['test']} to test",
        "Classes": str(len(data.classes)),
        "Size": f"{image.height}x{image.width} pixels, {colours}",
        "Model": f"{config.model.name}, {trained.parameters:,} parameters",
        "Patch embedding": config.model.patch_embedding.name,
        "Training": f"{trained.epochs:.1f} epochs in {trained.seconds:.0f} s on {trained.device} "
        f"({trained.precision})",
        "Best weights": f"epoch {trained.best_step / trained.steps * trained.epochs:.0f}, "
        f"validation accuracy {trained.best_validation_accuracy:.1%}",
        "Data version": data.fingerprint[:12],
    }
    return ReportPage(
        title=f"{config.name}: test report", facts=facts, notes=data.notes, settings=config.flat()
    )
