"""The input and the result of a worker that decodes a part of the images of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.data.store.store_shards import StoreSpec
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.launcher import Resources

MODULE = "patchline.pipeline.data.store.decoding_worker"
RESOURCES = Resources()
"""All cores of one machine."""
FEWEST_IMAGES_OF_PART = 2000
"""With fewer, a part is decoded before its worker would have started."""


class DecodingJob(FrozenModel):
    """The images of a part, and the format that they get."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    files: Path
    """Lines of JSON: path and SHA-256 of each image, in their order."""
    images: Path
    """The array to write, uint8 (N, H, W, C)."""
    shape: tuple[int, int, int]
    """Height, width and channels."""
    resize: ResizePolicy
    mapping: dict[str, Any]
    """What becomes of values that are not of 8 bits, as JSON."""

    @property
    def spec(self) -> StoreSpec:
        """The format of an image."""
        height, width, channels = self.shape
        return StoreSpec(channels, height, width, self.resize, PixelMapping.of(self.mapping))


class PartDecoded(FrozenModel):
    """The array is there."""

    images: int
