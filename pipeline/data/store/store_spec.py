"""The format of the images of a store, and an image that was read for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from patchline.pipeline.data.pixel_values.pixel_mapping import PLAIN, PixelMapping
from patchline.pipeline.data.reading.resizing import Pixels, ResizePolicy


@dataclass(frozen=True)
class StoreSpec:
    """The format of every image of a store."""

    channels: int
    height: int
    width: int
    resize: ResizePolicy
    mapping: PixelMapping = PLAIN
    """What becomes of values that are not of 8 bits."""


class ReadImage(NamedTuple):
    """An image in two forms."""

    file: bytes
    """What the image was decoded from."""
    pixels_in_file: int
    """Height times width before resizing."""
    resized_HWC: Pixels
