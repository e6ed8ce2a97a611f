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
    extends: ExtendedTraining | None = None
    """The finished training whose final state this one starts from."""
