"""Try a run: read its data and resolve its settings, or rehearse every stage, without training.

It finds what would end a run late: a model that cannot be exported, a broken plugin, classes that
the registered model does not have. It needs no Prefect server and opens no MLflow run; its files
are deleted at the end.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patchline.flows.progress.progress_display import display
from patchline.flows.training.chosen_launcher import build_reporting, use_chosen_launcher
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.unlabelled_images import few_unlabelled
from patchline.pipeline.evaluation.cost import estimate_predicting_seconds
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.decode import Decode
from patchline.pipeline.stages.lines import line_of
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.terminal_words import duration
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.parts.run_parts import images_of_parts
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.run_memory.shared_stage_memory import SharedStageMemory
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class DryRun:
    """What a run would train on, and with which settings."""

    data: IngestedData
    config: RunConfig
    """The run's settings, resolved."""
    plan: Plan | None
    """None with the preset none."""
    context: Context
    """What the stages have left."""


def dry_run(config: RunConfig, workspace: Path) -> DryRun:
    """Go through the stages before the images are decoded, and resolve the settings.

    The stages and their notes are displayed.

    Args:
        config: the run's settings, not resolved.
        workspace: the folder `.patchline`; the split is not remembered in it.

    Raises:
        PipelineError: if the data, the weights or the settings cannot be used.
    """
    stages = line_of(config).stages
    stages = stages[: stages.index(Decode)]
    memory = SharedStageMemory(workspace, shared=chosen.find_shared_files())
    context = Context(config, memory, build_reporting(), workspace, remembers=False)
    with use_chosen_launcher(config.launcher):
        engine.prewarm_at_start(stages, config)
        list(engine.check(stages, config, workspace))
        engine.run_stages(stages, context)
    data = context.get(IngestedData)
    return DryRun(data, ingestion.resolve(context.config, data), context.find(Plan), context)


_BATCHES = 2
_EVALUATED = 64
"""Images of the validation and of the test split: two batches of 32."""
_FEW = 16
"""Images of each split if only a head is trained."""


class Rehearsal(FrozenModel):
    """The result: how long the rehearsal took, and how long the run would take."""

    seconds: float
    run_seconds: float
    """Seconds that the run would take, estimated from the measured speeds."""
    training_seconds: float
    """The part of `run_seconds` for training and its validation."""

    def verdict(self) -> str:
        """Return the result as a sentence."""
        whole, training = duration(self.run_seconds), duration(self.training_seconds)
        return (
            f"Everything works (rehearsed in {duration(self.seconds)}); the real run would take "
            f"about {whole}, including {training} of training."
        )


def rehearse(config: RunConfig) -> Rehearsal:
    """Go through all stages up to the registration with two batches, and register nothing.

    Args:
        config: the settings of the run to rehearse.

    Raises:
        PipelineError: what would end the run.
    """
    began, workspace = time.monotonic(), WORKSPACE.resolve()
    make_folder(workspace)
    with (
        worker_start.allow_prepared_workers(),
        use_chosen_launcher(config.launcher),
        tempfile.TemporaryDirectory(dir=workspace, prefix=".building-") as scratch,
    ):
        stages = [stage for stage in line_of(config).stages if stage.rehearsal is not None]
        engine.prewarm_at_start(stages, config)
        whole = dry_run(config, workspace)
        for line in whole.plan.lines() if whole.plan else ():
            display().note(line)
        folder = Path(scratch).resolve()
        few = _subset(whole.data, whole.config, folder)
        context = whole.context
        context.memory, context.rehearses = StageMemory(folder, fresh=True), True
        context.put(few)
        context.put(TrackedRun("rehearsal", "0", folder))
        engine.run_stages(stages, context)
    training, seconds = _estimate(whole, few, context)
    return Rehearsal(
        seconds=time.monotonic() - began, run_seconds=seconds, training_seconds=training
    )


def _subset(data: IngestedData, config: RunConfig, folder: Path) -> IngestedData:
    """Return two batches of training images and some of the other splits, of as many classes."""
    whole = manifests.load(data.manifest_file)
    rows = manifests.usable(whole)
    limits = {
        "train": _BATCHES * config.training.batch_size,
        "validation": _EVALUATED,
        "test": _EVALUATED,
    }
    if config.training.trainable in ("head", "last_blocks"):  # large models, and few steps
        limits = {"train": max(_FEW, len(data.classes)), "validation": _FEW, "test": _FEW}
    chosen = []
    for split, limit in limits.items():
        part = rows[rows["split"] == split]
        if data.task == MULTI_LABEL and data.classes:
            sets_NK = label_sets.matrix(list(part["label"]), data.classes)
            chosen += list(part.index[label_sets.by_label(sets_NK)[:limit]])
            continue
        rank = part.groupby("label").cumcount()  # the first of each class, then the second
        chosen += list(part.index[np.argsort(rank.to_numpy(), kind="stable")[:limit]])
    few = rows.loc[sorted(chosen)].reset_index(drop=True)
    fingerprint = manifests.fingerprint(few)
    file = folder / f"{fingerprint}.parquet"
    manifests.save(few, file)
    counts = {split: int((few["split"] == split).sum()) for split in limits}
    changes: dict[str, object] = {"manifest_file": file, "fingerprint": fingerprint}
    if data.unlabelled:
        unlabelled = few_unlabelled(data.unlabelled, limits["train"], folder)
        changes["unlabelled"], counts[UNLABELLED] = unlabelled, unlabelled.count
    return data.model_copy(update={**changes, "counts": counts})


def _estimate(whole: DryRun, few: IngestedData, context: Context) -> tuple[float, float]:
    """Return how long training and the whole run would take, in seconds."""
    config, data, seconds = whole.config, whole.data, context.seconds
    rate = (whole.plan or context.get(TrainResult)).images_per_second
    training = _training_seconds(config, data, rate)
    training += whole.plan.seconds_before if whole.plan else 0.0
    if config.training.time_limit and whole.plan and whole.plan.shares:
        training = min(training, whole.plan.shares.training)
    decoding = seconds["prepare"] * sum(data.counts.values()) / sum(few.counts.values())
    tested = _estimate_testing_seconds(whole, rate)
    rest = seconds["read"] + seconds["evaluate"] + 2 * (seconds["package"] + seconds["register"])
    return training, training + decoding + tested + rest


def _training_seconds(config: RunConfig, data: IngestedData, rate: float) -> float:
    """Return how long training and its validation take, at so many training images per second."""
    predicted = estimate_predicting_seconds(config, data.counts["validation"], rate)
    epoch = sum(images / rate + predicted for images in images_of_parts(config, data))
    training = config.training
    if training.trainable == "head":
        return sum(data.counts.values()) / rate
    if training.time_limit:
        return min(duration_seconds(training.time_limit), (training.epochs or math.inf) * epoch)
    if config.record.step_plan:
        return config.record.step_plan[-1][2] * training.batch_size / rate
    return training.epochs_without_limit * epoch


def _estimate_testing_seconds(whole: DryRun, rate: float) -> float:
    """Return how long the evaluation predicts images."""
    config, counts = whole.config, whole.data.counts
    if config.training.trainable == "head":  # whose training computes the features of these, too
        return 0.0
    images = counts["validation"] + counts["test"]
    if whole.plan and (passes := whole.plan.facts.speed_of(FEATURES).images_per_second):
        return images / passes
    return estimate_predicting_seconds(config, images, rate)
