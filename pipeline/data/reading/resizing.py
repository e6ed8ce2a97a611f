"""Resize one image, for the prepared store, the evaluation and the package alike.

This module is copied into every packaged model, so it imports only numpy and OpenCV.
"""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np

_MOST_STRETCHED = 16
"""If the scaled image would be more times larger than the crop, it is cropped first."""
_CUBIC_MARGIN = 4  # pixels that interpolation looks at, and one more

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
ResizePolicy = Literal["crop", "squash", "pad"]


def resize_image(
    image_HWC: np.ndarray[Any, Any],
    height: int,
    width: int,
    resize: ResizePolicy,
) -> Pixels:
    """Resize an image: (H, W, C) to (height, width, C), uint8.

    `crop` scales the image until it covers the target and crops the centre; `squash` scales each
    side separately; `pad` scales the image until it fits into the target, in the centre of a border
    in its mean color. Shrinking uses area averaging, enlarging bicubic interpolation. If enlarging
    would make the image much larger than the target, it is cropped first.
    """
    source_height, source_width, channels = image_HWC.shape
    if (source_height, source_width) == (height, width):
        return np.ascontiguousarray(image_HWC)
    if resize == "pad":
        return _pad(image_HWC, height, width)
    new_height, new_width = height, width
    if resize == "crop":
        scale = max(height / source_height, width / source_width)
        new_height = max(height, round(source_height * scale))
        new_width = max(width, round(source_width * scale))
    shrinks = new_height < source_height or new_width < source_width
    top, left = (new_height - height) // 2, (new_width - width) // 2
    if not shrinks and new_height * new_width > _MOST_STRETCHED * height * width:
        image_HWC, new_height, top = _crop_source(image_HWC, 0, new_height, top, height)
        image_HWC, new_width, left = _crop_source(image_HWC, 1, new_width, left, width)
    method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    scaled = cv2.resize(
        np.ascontiguousarray(image_HWC), (new_width, new_height), interpolation=method
    )
    cut = scaled.reshape(new_height, new_width, channels)[top : top + height, left : left + width]
    return np.ascontiguousarray(cut)


def _pad(image_HWC: np.ndarray[Any, Any], height: int, width: int) -> Pixels:
    """Scale an image until it fits, and put it into the centre of a border in its mean color."""
    source_height, source_width, channels = image_HWC.shape
    scale = min(height / source_height, width / source_width)
    inner_height = min(height, max(1, round(source_height * scale)))
    inner_width = min(width, max(1, round(source_width * scale)))
    inner = resize_image(image_HWC, inner_height, inner_width, "squash")
    count = inner_height * inner_width  # the mean is rounded in integers, alike on every machine
    mean_C = (2 * inner.sum(axis=(0, 1), dtype=np.int64) + count) // (2 * count)
    padded = np.empty((height, width, channels), np.uint8)
    padded[:] = mean_C
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    padded[top : top + inner_height, left : left + inner_width] = inner
    return padded


def _crop_source(
    image_HWC: np.ndarray[Any, Any], axis: int, scaled: int, first: int, count: int
) -> tuple[np.ndarray[Any, Any], int, int]:
    """Crop an image along an axis to the part that a crop of its enlargement shows.

    Args:
        image_HWC: the image.
        axis: 0 for rows, 1 for columns.
        scaled: the side of the enlarged image, in pixels.
        first: the row or column of the enlarged image that the crop begins with.
        count: the length of the crop, in pixels.

    Returns:
        The part, the side to enlarge it to, and where the crop begins in the enlarged part.
    """
    side = image_HWC.shape[axis]
    start = max(0, first * side // scaled - _CUBIC_MARGIN)
    stop = min(side, -(-(first + count) * side // scaled) + _CUBIC_MARGIN)
    before = round(start * scaled / side)
    part = image_HWC[start:stop] if axis == 0 else image_HWC[:, start:stop]
    return part, max(count, round(stop * scaled / side) - before), first - before
