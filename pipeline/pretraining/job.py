"""Input and output of the worker that tests what was pre-trained."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import RunConfig
from pipeline.plugin_api import ImageSpec
from pipeline.section import Section


class PretrainingJob(Section):
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


class Picture(Section):
    """The file of one view of one image."""

    title: str
    file: str
    """Name in the folder of the result."""


class PicturedImage(Section):
    """An image and its views."""

    path: str
    """As in the manifest."""
    views: tuple[Picture, ...]


class PretrainingResult(Section):
    """The losses of the test images, and pictures of the first ones."""

    losses: tuple[float, ...]
    """Of each test image; of each batch, if the objective computes no loss of one image."""
    images: int
    pictures: tuple[PicturedImage, ...]
    seconds: float
