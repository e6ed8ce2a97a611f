"""An image as the page shows it: as a run of the folder decodes it, and written as JPEG or PNG.

Shapes: H, W and C of an image.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pandas as pd

from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.data.pixel_values.file_summary import FileSummary
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    decode_image,
    deep_values,
)
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.value_ranges.data_values import choose_values
from patchline.plugins.tools.label.pool import Pool, PoolImage

LARGEST_SIDE = 1600
_SMALL_SIDE = 256
"""Pixels; such images are written without loss."""
_QUALITY = 88
_FILES = 32
"""Of the folder, that say which values of more than 8 bits are black and white."""


class BrowserPicture(NamedTuple):
    """A file for a browser."""

    content: bytes
    media_type: str


def picture(pool: Pool, image: PoolImage, side: int) -> BrowserPicture:
    """Return an image of a folder with at most so many pixels on its longer side.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read.
    """
    some = heapq.nsmallest(_FILES, pool.images.items())
    try:
        mapping = _mapping_of(pool.folder, tuple(each.name for _, each in some))
        return _picture(image.file, side, mapping)
    except UndecodableImageError:  # perhaps because its values are unlike those of the others
        return _picture(image.file, side, _mapping_of(pool.folder, (image.name,)))


@functools.lru_cache(maxsize=64)
def _mapping_of(folder: Path, names: tuple[str, ...]) -> PixelMapping:
    """Return what becomes of the values of images, as a run with these images decides it."""
    rows = []
    for name in names:
        with (
            contextlib.suppress(UndecodableImageError),
            root_image_bytes(folder, name) as data,
            deep_values(data) as values,
        ):
            if values is not None:
                rows.append((name, name, "", FileSummary.of(values).text))
    table = pd.DataFrame(rows, columns=["path", "sha256", "mode", "values"])
    return choose_values(table, folder, DataConfig()).mapping


def _picture(file: Path, side: int, mapping: PixelMapping) -> BrowserPicture:
    with image_bytes(file) as data:
        pixels_HWC = decode_image(data, 3, mapping=mapping)
    try:
        return _written(pixels_HWC, max(1, min(side, LARGEST_SIDE)))
    except (cv2.error, MemoryError) as error:
        raise UndecodableImageError("the image is too large, or too narrow") from error


def _written(pixels_HWC: np.ndarray[Any, Any], side: int) -> BrowserPicture:
    height, width = pixels_HWC.shape[:2]
    longer = max(height, width)
    if longer > side:
        size = max(1, round(width * side / longer)), max(1, round(height * side / longer))
        pixels_HWC = cv2.resize(pixels_HWC, size, interpolation=cv2.INTER_AREA)
    colors_HWC = cv2.cvtColor(np.ascontiguousarray(pixels_HWC), cv2.COLOR_RGB2BGR)
    if longer <= _SMALL_SIDE:
        written, content = cv2.imencode(".png", colors_HWC)
        media_type = "image/png"
    else:
        written, content = cv2.imencode(".jpg", colors_HWC, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        media_type = "image/jpeg"
    if not written:
        raise UndecodableImageError("the image is too large, or too narrow")
    return BrowserPicture(content.tobytes(), media_type)
