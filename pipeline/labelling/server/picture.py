"""An image as the page shows it: decoded here, whatever its format, and written as JPEG or PNG.

Shapes: H, W and C of an image, N values of a pixel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues, with_channels
from patchline.pipeline.data.reading.decoding import (
    Pixels,
    UndecodableImageError,
    decode_image,
    deep_values,
)
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.pillow_decoding import turned

LARGEST_SIDE = 1600
_SMALL_SIDE = 256
"""Pixels; such images are written without loss."""
_QUALITY = 88
_DARKEST, _BRIGHTEST = 1.0, 99.0
"""Percentiles of the values of more than 8 bits that are shown as black and white."""


class Picture(NamedTuple):
    """A file for a browser."""

    content: bytes
    media_type: str


def picture(file: Path, side: int) -> Picture:
    """Return an image with at most so many pixels on its longer side.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read.
    """
    with image_bytes(file) as data, deep_values(data) as values:
        pixels_HWC = decode_image(data, 3) if values is None else _stretched(values)
    try:
        return _written(pixels_HWC, max(1, min(side, LARGEST_SIDE)))
    except (cv2.error, MemoryError) as error:
        raise UndecodableImageError("the image is too large, or too narrow") from error


def _stretched(values: FileValues) -> Pixels:
    """Return values of more than 8 bits as a picture; their first one or three bands."""
    samples_HWN = values.samples_HWN
    colors_HWC = samples_HWN[:, :, : 3 if samples_HWN.shape[2] >= 3 else 1]  # noqa: PLR2004 - RGB
    values_HWC = np.nan_to_num(colors_HWC.astype(np.float32), posinf=0.0, neginf=0.0)
    low, high = np.percentile(values_HWC, (_DARKEST, _BRIGHTEST))
    scaled_HWC = (values_HWC - low) * (255 / max(high - low, 1e-12))
    shown_HWC = np.clip(255 - scaled_HWC if values.inverted else scaled_HWC, 0, 255)
    return turned(with_channels(shown_HWC.astype(np.uint8), 3), values.orientation)


def _written(pixels_HWC: np.ndarray[Any, Any], side: int) -> Picture:
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
    return Picture(content.tobytes(), media_type)
