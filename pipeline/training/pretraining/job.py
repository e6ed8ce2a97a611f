"""Input and output of the worker that tests what was pre-trained."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.plugin_api import ImageSpec


class PretrainingJob(FrozenModel):
    """What was trained, the images to test it on, and the folder for the results."""

    config: RunConfig
    """Resolved."""
    trained: Path
    """Folder of the weights."""
    manifest_file: Path
    store: Path
    image: ImageSpec
    device: str
    pictures: int
    """Images to make pictures of, at most."""
    folder: Path


class ViewFile(FrozenModel):
    """The file of one view of one image."""

    title: str
    file: str
    """Name in the folder of the result."""


class PicturedImage(FrozenModel):
    """An image and its views."""

    path: str
    """As in the manifest."""
    views: tuple[ViewFile, ...]


class PretrainingResult(FrozenModel):
    """The losses of the test images, and pictures of the first ones."""

    losses: tuple[float, ...]
    """Of each test image; of each batch, if the objective computes no loss of one image."""
    images: int
    pictures: tuple[PicturedImage, ...]
    seconds: float
