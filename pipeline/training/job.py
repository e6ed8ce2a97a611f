"""The input of the training process, and which of the run's fits it computes.

All parts of a run share its settings. They differ in the images that they use, and later parts
follow the plan of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.config import FinalModel, duration_seconds, with_changes
from patchline.pipeline.training.machine import MEMBER_MODULE, MODULE
from patchline.pipeline.training.step_plan import Knot, StepPlan
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.worker_process import Worker
from patchline.plugin_api import ImageSpec

if TYPE_CHECKING:
    import pandas as pd


Integers = np.ndarray[Any, np.dtype[np.int64]]


class TrainingPart(FrozenModel):
    """Which images one training of a run uses, and whose plan it follows."""

    fold: int | None = None
    """The fold to validate on, counted from 1; None without folds."""
    folds: int | None = None
    """Number of folds."""
    refit: bool = False
    """Whether to train on the training and validation images together, without validation."""
    plan_steps_per_epoch: int | None = None
    """Steps per epoch of the training that the step plan was made for; None for this one's own."""
    epochs: float | None = None
    """Stop after this many epochs of the plan; None for all of it."""
    regularization: float | None = None
    """C of a head that is fitted without validation; None to choose it."""
    share: float | None = None
    """How far to go from that head to the weights that are trained from it, from 0 to 1; None to
    choose it."""
    members: tuple[Path, ...] = ()
    """Weights of each fold, which become one ensemble; nothing is trained then."""

    @property
    def stage(self) -> str:
        """Name of the part in the stage memory."""
        if self.members:
            return "ensemble"
        if self.refit:
            return "refit"
        return f"fold-{self.fold}" if self.fold else "train"

    @property
    def folder(self) -> str:
        """Name of the part's folder inside the folder of its MLflow run."""
        return self.stage if self.refit or self.members else "training"

    @property
    def is_continued(self) -> bool:
        """Whether it ends at an epoch of the plan to be continued later, so nothing is final."""
        return self.epochs is not None and not self.refit

    def rows(self, rows: pd.DataFrame, seed: int) -> tuple[Integers, Integers]:
        """Return the row numbers to train on, and those to validate on.

        Args:
            rows: the usable rows of the manifest.
            seed: the split seed.
        """
        from patchline.pipeline.data.splits import folds

        if self.refit:
            return folds.find_used_rows(rows), np.zeros(0, np.int64)
        if self.fold and self.folds:
            return folds.rows_of_fold(rows, self.fold, self.folds, seed)
        split = rows["split"]
        return np.flatnonzero(split == "train"), np.flatnonzero(split == "validation")

    def plan(self, knots: Sequence[Knot], steps_per_epoch: int) -> tuple[Knot, ...]:
        """Return the knots of the plan for this part's own number of steps per epoch.

        At each epoch, the progress is that of the plan; a part with fewer epochs ends before the
        progress reaches 1.
        """
        before = self.plan_steps_per_epoch or steps_per_epoch
        scaled_knots = scale_knots(knots, steps_per_epoch, before)
        if self.epochs is None:
            return scaled_knots
        last = min(scaled_knots[-1][2], max(1, math.floor(self.epochs * steps_per_epoch + 0.5)))
        plan = StepPlan(scaled_knots)
        plan.end_after(last, 0)
        return tuple(plan.knots)

    def validations(
        self, steps: Sequence[tuple[int, int]], steps_per_epoch: int
    ) -> tuple[tuple[int, int], ...]:
        """Return recorded validations (step, images) for this part's own steps per epoch."""
        before = self.plan_steps_per_epoch or steps_per_epoch
        return tuple((scale_step(step, steps_per_epoch, before), images) for step, images in steps)


def images_of_fits(
    train: int,
    validation: int,
    *,
    folds: int | None,
    final_model: FinalModel | None,
    unlabelled: int = 0,
) -> list[float]:
    """Return the number of images that each training of a run has in an epoch.

    Args:
        train: number of images of the training split.
        validation: number of images of the validation split.
        folds: the value of `training.folds`: number of folds, or None.
        final_model: the value of `training.final_model`.
        unlabelled: number of unlabelled images that every training has besides.
    """
    everything = train + validation
    if folds is None:
        labelled: list[float] = [train, everything] if final_model == "refit" else [train]
    else:
        each = [everything * (folds - 1) / folds] * folds
        labelled = each if final_model == "ensemble" else [*each, everything]
    return [images + unlabelled for images in labelled]


def scale_step(step: int, numerator: int, denominator: int) -> int:
    """Return a step times a fraction, rounded."""
    return (2 * step * numerator + denominator) // (2 * denominator)


def scale_knots(knots: Sequence[Knot], numerator: int, denominator: int) -> tuple[Knot, ...]:
    """Return a plan whose steps are multiplied by a fraction; knots that coincide are merged."""
    knots_by_step: dict[int, Knot] = {}
    for step, progress, end in knots:
        start, until = (scale_step(each, numerator, denominator) for each in (step, end))
        knots_by_step[start] = (start, progress, max(1, start, until))
    return tuple(knots_by_step.values())


class ExtendedTraining(FrozenModel):
    """A finished training that another one extends to more epochs."""

    run_id: str
    folder: Path
    """Folder of the training, with its final checkpoint and best weights."""
    steps: int
    """Number of steps that were done."""


TOKEN_VIEWS = 2
"""Views of each image whose tokens are stored: the image itself, and its mirror image if the model
predicts from both (test_time_flip), otherwise an augmented one."""


class StoredTokens(FrozenModel):
    """The tokens that a fit starts from in place of images, and the head that it starts with.

    They are those of the training and validation images, after the first blocks of the network.
    """

    file: Path
    """float16 (M, V, N, D): images, views, tokens, embedding."""
    blocks: int
    """Number of blocks after the tokens, which are trained."""
    head: Path
    """Weight (K, D) and bias (K) of the fitted head."""
    mirrored: bool = False
    """Whether the second view is the mirror image, which predictions take too."""
    fold: int | None = None
    """The fold of the training images to validate on, counted from 0; None for the validation
    images."""
    folds: int = 1
    """Number of folds of the training images."""


class UnlabelledStore(FrozenModel):
    """Images that are trained on without labels; their rows follow those of the labelled ones."""

    manifest_file: Path
    store: Path


class TeacherPredictions(FrozenModel):
    """What a teacher has predicted for images of a run."""

    file: Path
    """Logits of the run's classes, float32 (M, V * K): images, views, classes."""
    splits: tuple[str, ...]
    """Splits of the labelled images among the M; the unlabelled ones follow them."""
    weights: Path
    """File of the teacher's weights, whose record says which images they have seen."""
    name: str
    """Name of the teacher."""

    @property
    def identity(self) -> str:
        """What decides the predictions: the teacher, the images, their views."""
        return f"{self.file.parent.name} of {', '.join(self.splits)}"

    def rows(self, splits: pd.Series[str], unlabelled: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows (M,) of a run that were predicted.

        Args:
            splits: the split of each usable row of the run's manifest.
            unlabelled: number of its unlabelled images, which follow them.
        """
        labelled = np.flatnonzero(splits.isin(self.splits))
        return np.concatenate([labelled, len(splits) + np.arange(unlabelled)])


class TrainingJob(FrozenModel):
    """Everything that decides the weights, and the folder for the results."""

    config: RunConfig
    """Settings of the run, resolved against the data."""
    manifest_file: Path
    store: Path
    image: ImageSpec
    classes: tuple[str, ...]
    data_fingerprint: str
    run_id: str
    folder: Path
    """Folder for checkpoints and pictures."""
    workspace: Path | None = None
    """Folder that remembers what was measured on this machine; None measures again."""
    part: TrainingPart = TrainingPart()
    """Which of the fits of the run this is."""
    initial_weights: Path | None = None
    """Folder of the weights that the training starts from; None for random weights."""
    unlabelled: UnlabelledStore | None = None
    """Further images to train on, if there are some."""
    teacher: TeacherPredictions | None = None
    """The soft targets of a teacher, if there is one."""
    tokens: StoredTokens | None = None
    """What the last blocks are trained from; None to train from images."""
    extends: ExtendedTraining | None = None
    """The finished training whose final state this one starts from."""

    @property
    def limit_seconds(self) -> float:
        """The time limit in seconds; infinite if there is none."""
        limit = self.config.training.time_limit
        return duration_seconds(limit) if limit else math.inf

    def limited_to(self, seconds: float) -> Self:
        """Return the job with another time limit, of a millisecond at least, if it has one."""
        if self.limit_seconds == math.inf:
            return self
        limit = {"time_limit": f"{max(0.001, seconds):.3f}s"}
        return self.model_copy(update={"config": with_changes(self.config, training=limit)})


TRAINING = Worker(MODULE, TrainingJob, TrainResult, MEMBER_MODULE, from_start=True)
