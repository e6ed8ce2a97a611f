"""The evaluation stage of a run without labels: test the objective, then write the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.data.seen_images import about_test_images
from pipeline.evaluation.evaluating import FOLDER, about_run, model_ingredients
from pipeline.evaluation.html_report import ReportPage
from pipeline.metrics.intervals import MetricEstimate, mean_of_repeats
from pipeline.pretraining.job import PretrainingJob, PretrainingResult
from pipeline.pretraining.report import LOSS, PretrainingReport, write_report
from pipeline.run_memory import stage_keys
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.section import Section
from pipeline.training.train_result import TrainResult
from pipeline.workers.event_log import Event
from pipeline.workers.worker_process import run_worker

MODULE = "pipeline.pretraining"
_CODE = ("pipeline.pretraining.__main__", "pipeline.pretraining.stage", "pipeline.layers")
_PATHS: dict[str, Any] = {"best": True}
_UNLIMITED = (0.0, float("inf"))


class PretrainingEvaluated(Section):
    """The report and its files."""

    report: PretrainingReport
    folder: Path
    html: Path


def evaluate_pretraining(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    run_folder: Path,
    memory: StageMemory,
    on_event: Callable[[Event], None],
) -> PretrainingEvaluated:
    """Test what was pre-trained and write the report, or reuse the report of an identical stage.

    Args:
        config: the resolved config.
        data: the ingested data with its manifest.
        prepared: the prepared images.
        trained: the training result with the best weights.
        run_folder: receives `report/` with `report.html`, `report.json` and the pictures.
        memory: results of earlier stages.
        on_event: receives the progress.
    """
    folder = run_folder / FOLDER
    ingredients = {
        **model_ingredients(config, data, prepared, trained),
        **config.flat(),
        **stage_keys.software(config, "objective"),
        "notes": "\n".join((data.split_origin, *data.notes)),
        "training": trained.model_dump_json(exclude=_PATHS),
        "code": stage_keys.code(*_CODE),
    }
    return memory.once(
        "evaluate",
        ingredients,
        PretrainingEvaluated,
        folder,
        lambda: _evaluated(config, data, prepared, trained, folder, on_event),
    )


def _evaluated(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    folder: Path,
    on_event: Callable[[Event], None],
) -> PretrainingEvaluated:
    job = PretrainingJob(
        config=config,
        trained=trained.best.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        image=prepared.image,
        device=trained.device,
        pictures=config.evaluation.gallery_size,
        folder=folder.resolve(),
    )
    tested = run_worker(MODULE, folder.parent / "testing", job, PretrainingResult, on_event)
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
            **about_run(config, data, prepared, trained),
            "Best weights": f"epoch {trained.best_epoch:.4g}, validation loss "
            f"{trained.best_validation_loss or 0:.4g}",
        },
        notes=data.notes,
        settings=config.flat(),
    )
    history = [record.model_dump() for record in trained.history]
    shown = preview if preview.exists() else None
    html = write_report(report, page, folder, history, shown)
    return PretrainingEvaluated(report=report, folder=folder, html=html)


def _mean(losses: tuple[float, ...]) -> MetricEstimate:
    """Return the mean of the losses with its t interval; of a single one, the value alone."""
    if len(losses) == 1:
        return MetricEstimate(value=losses[0], low=losses[0], high=losses[0], n=1)
    return mean_of_repeats(losses, _UNLIMITED)
