"""The input of the training process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.part import TrainingPart
from patchline.plugin_api import ImageSpec

if TYPE_CHECKING:
    import pandas as pd


class ExtendedTraining(FrozenModel):
    """A finished training that another one extends to more epochs."""

    run_id: str
    folder: Path
    """Of the training, with its final checkpoint and best weights."""
    steps: int
    """That were done."""


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
    """Of the teacher."""

    @property
    def identity(self) -> str:
        """What decides the predictions: the teacher, the images, their views."""
        return f"{self.file.parent.name} of {', '.join(self.splits)}"

    def rows(self, splits: pd.Series[str], unlabelled: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows (M,) of a run that were predicted.

        Args:
            splits: of the usable rows of its manifest.
            unlabelled: number of its unlabelled images, which follow them.
        """
        labelled = np.flatnonzero(splits.isin(self.splits))
        return np.concatenate([labelled, len(splits) + np.arange(unlabelled)])


class TrainingJob(FrozenModel):
    """Everything that decides the weights, and the folder for the results."""

    config: RunConfig
    """Resolved against the data."""
    manifest_file: Path
    store: Path
    image: ImageSpec
    classes: tuple[str, ...]
    data_fingerprint: str
    run_id: str
    folder: Path
    """For checkpoints and pictures."""
    workspace: Path | None = None
    """Remembers what was measured on this machine; None measures again."""
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
