"""Go through every stage of a run with two batches, and register nothing.

It finds what would end a run late: a model that cannot be exported, a broken plugin, classes that
the registered model does not have. It needs no Prefect server and opens no MLflow run; its files
are deleted at the end.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flows.progress import display, show_event
from flows.training.dry_run import dry_run
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data import manifest as manifests
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.errors import PackagingError
from pipeline.evaluation import evaluating
from pipeline.evaluation.cost import predicting_seconds
from pipeline.evaluation.evaluating import Evaluated
from pipeline.packaging import stage as packaging_stage
from pipeline.packaging.clean_process_check import check_package
from pipeline.packaging.model_card import CardFacts
from pipeline.packaging.packaged_model import PackagedModel
from pipeline.planning.facts import Plan
from pipeline.pretraining import stage as pretraining
from pipeline.pretraining.stage import PretrainingEvaluated
from pipeline.registry import registered_models, registration
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.section import Section
from pipeline.terminal_words import duration
from pipeline.tracking.tracked_run import TrackedRun
from pipeline.training.config import duration_seconds
from pipeline.training.launching import job_of
from pipeline.training.machine import MODULE
from pipeline.training.run_parts import images_of_parts
from pipeline.training.train_result import TrainResult
from pipeline.workers import prewarm, worker_start
from pipeline.workers.event_log import Event
from pipeline.workers.worker_process import run_worker
from pipeline.workspace import WORKSPACE, make_folder

_BATCHES = 2
_EVALUATED = 64
"""Images of the validation and of the test split: two batches of 32."""
_FEW = 16
"""Images of each split if only a head is trained."""


class Rehearsal(Section):
    """The result: how long the rehearsal took, and how long the run would take."""

    seconds: float
    run_seconds: float
    """Estimated from the measured speeds."""
    training_seconds: float
    """Of these, for training and its validation."""

    def verdict(self) -> str:
        """Return the result as a sentence."""
        whole, training = duration(self.run_seconds), duration(self.training_seconds)
        return (
            f"Everything works (rehearsed in {duration(self.seconds)}); the real run would take "
            f"about {whole}, including {training} of training."
        )


@dataclass
class _Stages:
    """The seconds of each stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, key: str, title: str) -> Iterator[None]:
        display().stage(title)
        began = time.monotonic()
        yield
        self.seconds[key] = time.monotonic() - began


def rehearse(config: RunConfig) -> Rehearsal:
    """Read the data, train two steps, evaluate, package and check the package.

    Args:
        config: of the run to rehearse.

    Raises:
        PipelineError: what would end the run.
    """
    began, workspace = time.monotonic(), WORKSPACE.resolve()
    make_folder(workspace)
    with (
        worker_start.prepared_workers(),
        tempfile.TemporaryDirectory(dir=workspace, prefix=".building-") as scratch,
    ):
        prewarm.training()
        found = dry_run(config, workspace)
        for line in found.plan.lines() if found.plan else ():
            display().note(line)
        stages, data, config = _Stages({"read": found.reading_seconds}), found.data, found.config
        folder = Path(scratch).resolve()
        few = _subset(data, config, folder)
        with stages.stage("prepare", f"Decoding {sum(few.counts.values()):,} images"):
            registered_models.check_classes(str(config.name), data.classes)
            prepared = ingestion.prepare(config, few, folder)
        prewarm.evaluation_and_packaging()
        if config.training.folds or config.training.refit:
            display().note("folds and a refit repeat this training and are not rehearsed")
        with stages.stage("train", f"Training {_BATCHES} steps"):
            trained = _train(config, few, prepared, folder, workspace)
        memory = StageMemory(folder, fresh=True)
        with stages.stage("evaluate", "Evaluating two batches"):
            evaluated = _evaluate(config, few, prepared, trained, folder, memory)
        with stages.stage("package", "Packaging the model and checking the package"):
            _package(config, few, prepared, trained, evaluated, folder, memory)
    training, whole = _estimated(config, data, few, found.plan, trained, stages.seconds)
    return Rehearsal(seconds=time.monotonic() - began, run_seconds=whole, training_seconds=training)


def _subset(data: IngestedData, config: RunConfig, folder: Path) -> IngestedData:
    """Return two batches of training images and some of the other splits, of as many classes."""
    whole = manifests.load(data.manifest_file)
    rows = manifests.usable(whole)
    limits = {
        "train": _BATCHES * config.training.batch_size,
        "validation": _EVALUATED,
        "test": _EVALUATED,
    }
    if config.training.trainable == "head":  # large models, and no steps
        limits = {"train": max(_FEW, len(data.classes)), "validation": _FEW, "test": _FEW}
    chosen = []
    for split, limit in limits.items():
        part = rows[rows["split"] == split]
        rank = part.groupby("label").cumcount()  # the first of each class, then the second
        chosen += list(part.index[np.argsort(rank.to_numpy(), kind="stable")[:limit]])
    few = rows.loc[sorted(chosen)].reset_index(drop=True)
    fingerprint = manifests.fingerprint(few)
    file = folder / f"{fingerprint}.parquet"
    manifests.save(few, file)
    counts = {split: int((few["split"] == split).sum()) for split in limits}
    changes = {"manifest_file": file, "fingerprint": fingerprint, "counts": counts}
    return data.model_copy(update=changes)


def _train(
    config: RunConfig, few: IngestedData, prepared: PreparedData, folder: Path, workspace: Path
) -> TrainResult:
    length = {"time_limit": None, "step_plan": ((0, 0.0, _BATCHES),)}
    training = config.training.model_copy(update=length)
    config = config.model_copy(update={"training": training})
    job = job_of(config, few, prepared, folder / "training", "rehearsal", workspace)
    if training.trainable == "head":
        # Features that are stored there would not say how long it takes to compute them.
        job = job.model_copy(update={"workspace": None})
    return run_worker(MODULE, job.folder, job, TrainResult, _show_warning)


def _show_warning(event: Event) -> None:
    """Show what a run would warn of; the progress of two steps is not worth a line."""
    if event["kind"] == "warning":
        show_event(event)


def _evaluate(
    config: RunConfig,
    few: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    folder: Path,
    memory: StageMemory,
) -> Evaluated | PretrainingEvaluated:
    inputs = (config, few, prepared, trained, folder, memory, show_event)
    if few.classes:
        return evaluating.evaluate_run(*inputs)
    return pretraining.evaluate_pretraining(*inputs)


def _package(
    config: RunConfig,
    few: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    evaluated: Evaluated | PretrainingEvaluated,
    folder: Path,
    memory: StageMemory,
) -> None:
    card = CardFacts(name=str(config.name), metrics=evaluated.report.metrics)
    if isinstance(evaluated, Evaluated):
        inputs = (config, few, prepared, trained, evaluated, card, folder, memory)
        package = packaging_stage.package_run(*inputs, show_event)
    else:
        encoder = (config, few, prepared, trained, card, folder, memory)
        package = packaging_stage.package_encoder(*encoder, show_event)
    run = TrackedRun("rehearsal", "0", folder)
    saved = registration.save_as_mlflow_model(run, "rehearsal", package.folder)
    opened = PackagedModel(package.folder / "model.onnx", package.folder / "model.json")
    check = check_package(saved, opened)
    if not check.passed:
        raise PackagingError(f"The package does not work: {check.finding}. Change the model.")


def _estimated(
    config: RunConfig,
    data: IngestedData,
    few: IngestedData,
    plan: Plan | None,
    trained: TrainResult,
    seconds: dict[str, float],
) -> tuple[float, float]:
    """Return how long training and the whole run would take, in seconds."""
    rate = plan.images_per_second if plan else trained.images_per_second
    predicted = predicting_seconds(config, data.counts["validation"], rate)
    if config.training.trainable == "head":
        training = sum(data.counts.values()) / rate
    elif config.training.time_limit:
        training = duration_seconds(config.training.time_limit)
    elif config.training.step_plan:
        training = config.training.step_plan[-1][2] * config.training.batch_size / rate
    else:
        training = config.training.epochs * sum(
            images / rate + predicted for images in images_of_parts(config, data)
        )
    decoding = seconds["prepare"] * sum(data.counts.values()) / sum(few.counts.values())
    tested = predicted + predicting_seconds(config, data.counts["test"], rate)
    if config.training.trainable == "head":  # which computes the features of these images, too
        tested = 0.0
    rest = seconds["read"] + seconds["evaluate"] + 2 * seconds["package"]
    return training, training + decoding + tested + rest
