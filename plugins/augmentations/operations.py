"""The image operations of AutoAugment's successors, on uint8 images (H, W, C) with 1 or 3 channels.

They compute what torchvision.transforms.functional computes; the tests compare them. Geometric
operations interpolate bilinearly and fill with grey, as in AutoAugment (arXiv 1805.09501).
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
_GREY = (128, 128, 128)
_LEVELS = np.arange(256, dtype=np.float32)
_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_LUMA = (0.299, 0.587, 0.114)


def shear_x(image_HWC: Pixels, amount: float) -> Pixels:
    """Move each row by `amount` times its distance to the centre."""
    return _warped(image_HWC, np.array([[1.0, amount], [0.0, 1.0]]))


def shear_y(image_HWC: Pixels, amount: float) -> Pixels:
    """Move each column by `amount` times its distance to the centre."""
    return _warped(image_HWC, np.array([[1.0, 0.0], [amount, 1.0]]))


def translate_x(image_HWC: Pixels, pixels: float) -> Pixels:
    """Move the image to the right."""
    return _warped(image_HWC, np.eye(2), (pixels, 0.0))


def translate_y(image_HWC: Pixels, pixels: float) -> Pixels:
    """Move the image down."""
    return _warped(image_HWC, np.eye(2), (0.0, pixels))


def rotate(image_HWC: Pixels, degrees: float) -> Pixels:
    """Rotate counterclockwise around the centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _warped(image_HWC, np.array([[cos, sin], [-sin, cos]]))


def _warped(image_HWC: Pixels, linear: Matrix, shift: tuple[float, float] = (0.0, 0.0)) -> Pixels:
    """Map the point p (x, y) to linear @ (p - centre) + centre + shift."""
    height, width = image_HWC.shape[:2]
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    offset = centre + shift - linear @ centre
    matrix = np.column_stack([linear, offset])
    warped = cv2.warpAffine(
        image_HWC,
        matrix,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=_GREY,
    )
    return warped.reshape(image_HWC.shape)


def brightness(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with black; factor 1 is the image."""
    return _looked_up(image_HWC, _LEVELS * factor)


def contrast(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with the mean grey; factor 1 is the image."""
    mean = float(_luma(image_HWC).mean())
    return _looked_up(image_HWC, _LEVELS * factor + mean * (1 - factor))


def colour(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with the greyscale image; factor 1 is the image."""
    if image_HWC.shape[2] == 1:
        return image_HWC
    return _blended(image_HWC, _luma(image_HWC)[:, :, None], factor)


def sharpness(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with a smoothed image; factor 1 is the image. The border pixels stay."""
    smoothed = image_HWC.astype(np.float32)
    inner = cv2.filter2D(smoothed, -1, _SMOOTHING).reshape(image_HWC.shape)
    smoothed[1:-1, 1:-1] = np.rint(inner[1:-1, 1:-1])
    return _blended(image_HWC, smoothed, factor)


def posterize(image_HWC: Pixels, bits: int) -> Pixels:
    """Keep the highest bits of each value."""
    return image_HWC & np.uint8(256 - 2 ** (8 - bits))


def solarize(image_HWC: Pixels, threshold: float) -> Pixels:
    """Invert the values from a threshold on."""
    return _looked_up(image_HWC, np.where(threshold <= _LEVELS, 255 - _LEVELS, _LEVELS))


def autocontrast(image_HWC: Pixels) -> Pixels:
    """Stretch each channel to the full range."""
    channels = []
    for channel_HW in np.moveaxis(image_HWC, 2, 0):
        low, high = float(channel_HW.min()), float(channel_HW.max())
        scaled = (_LEVELS - low) * (255 / (high - low)) if high > low else _LEVELS
        channels.append(_looked_up(channel_HW, scaled))
    return np.stack(channels, axis=2)


def equalize(image_HWC: Pixels) -> Pixels:
    """Equalise the histogram of each channel, as PIL does."""
    return np.stack([_equalized(channel) for channel in np.moveaxis(image_HWC, 2, 0)], axis=2)


def _equalized(channel_HW: Pixels) -> Pixels:
    histogram = np.bincount(channel_HW.ravel(), minlength=256)
    present = histogram[histogram > 0]
    step = int(present[:-1].sum()) // 255
    if step == 0:
        return channel_HW
    before = np.concatenate([[0], np.cumsum(histogram)[:-1]])
    return _looked_up(channel_HW, (before + step // 2) // step)


def _luma(image_HWC: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the greyscale image (H, W), in whole numbers."""
    if image_HWC.shape[2] == 1:
        return image_HWC[:, :, 0].astype(np.float32)
    return np.floor(image_HWC.astype(np.float32) @ np.array(_LUMA, np.float32))


def _blended(
    image_HWC: Pixels, other: np.ndarray[Any, np.dtype[np.float32]], factor: float
) -> Pixels:
    return np.clip(image_HWC * np.float32(factor) + other * (1 - factor), 0, 255).astype(np.uint8)


def _looked_up(image: Pixels, table: np.ndarray[Any, Any]) -> Pixels:
    return cv2.LUT(image, np.clip(table, 0, 255).astype(np.uint8)).reshape(image.shape)
