"""The input and the result of a worker that looks up some of the views of all images."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.launcher import Resources

MODULE = "patchline.pipeline.data.near_duplicates.comparing_worker"
RESOURCES = Resources()
"""All cores of one machine."""
FEWEST_IMAGES_OF_PART = 20_000
"""With fewer, they are compared before the workers would have started."""


class ComparingJob(FrozenModel):
    """The views that are looked up, and among which images."""

    images: Path
    """The thumbnails, and which of them are new: NumPy's archive."""
    views: tuple[int, ...]
    """Places in the list of all searches."""
    pairs: Path
    """The array to write, int64 (2, P): rows of images that nearly show the same."""


class PartCompared(FrozenModel):
    """The array is there."""

    pairs: int
