"""The input of the training process."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.part import TrainingPart
from patchline.plugin_api import ImageSpec


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
    tokens: StoredTokens | None = None
    """What the last blocks are trained from; None to train from images."""
    extends: ExtendedTraining | None = None
    """The finished training whose final state this one starts from."""
