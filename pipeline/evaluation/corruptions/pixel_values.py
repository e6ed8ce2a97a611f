"""What corruptions share: values from 0 to 1, resizing, and blurring along a line.

Shapes: height H, width W, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

Array = np.ndarray[Any, Any]
Corrupt = Callable[[Array, int, np.random.Generator], Array]
"""Maps values (H, W, C) from 0 to 1 and a severity from 0 to 4 to values, which are clipped."""

PAPER_SIDE = 224
"""Side in pixels of the images that the paper's parameters are for."""


def scale_of(values_HWC: Array) -> float:
    """Return the image's shorter side in relation to the paper's: lengths are multiplied by it."""
    return float(min(values_HWC.shape[:2]) / PAPER_SIDE)


def convolved(values_HWC: Array, kernel: Array) -> Array:
    """Return the image convolved with a kernel, mirrored at its borders."""
    return shaped(
        cv2.filter2D(values_HWC, -1, kernel, borderType=cv2.BORDER_REFLECT_101), values_HWC
    )


def blurred(values_HWC: Array, sigma: float) -> Array:
    """Return the image blurred by a Gaussian of so many pixels."""
    if sigma <= 0:
        return values_HWC
    size = 2 * math.ceil(3 * sigma) + 1
    return shaped(cv2.GaussianBlur(values_HWC, (size, size), sigma), values_HWC)


def zoomed(values_HWC: Array, factor: float) -> Array:
    """Return the centre of the image, enlarged to its size."""
    height, width = values_HWC.shape[:2]
    matrix = np.array(
        [
            [factor, 0, (1 - factor) * (width - 1) / 2],
            [0, factor, (1 - factor) * (height - 1) / 2],
        ]
    )
    return warped(values_HWC, matrix)


def warped(values_HWC: Array, matrix_23: Array) -> Array:
    """Return the image under an affine map, mirrored at its borders."""
    height, width = values_HWC.shape[:2]
    result = cv2.warpAffine(
        values_HWC,
        matrix_23,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    return shaped(result, values_HWC)


def line_kernel(length: float, sigma: float, degrees: float) -> Array:
    """Return a kernel that smears in one direction, the weights half a Gaussian.

    Args:
        length: in pixels.
        sigma: of the Gaussian, in pixels.
        degrees: the direction.
    """
    reach = max(1, math.ceil(length))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    steps = np.linspace(0, length, 4 * reach + 1)
    weights = np.exp(-(steps**2) / (2 * max(sigma, 1e-6) ** 2))
    angle = math.radians(degrees)
    rows, columns = reach + steps * math.sin(angle), reach + steps * math.cos(angle)
    np.add.at(kernel, (np.rint(rows).astype(int), np.rint(columns).astype(int)), weights)
    normalised: Array = kernel / kernel.sum()
    return normalised


def grey(values_HWC: Array) -> Array:
    """Return the brightness (H, W, 1), weighted as an eye does for three channels."""
    if values_HWC.shape[2] == 3:  # noqa: PLR2004 - RGB
        weights = np.array([0.299, 0.587, 0.114], np.float32)
        weighted: Array = (values_HWC @ weights)[:, :, None]
        return weighted
    mean: Array = values_HWC.mean(axis=2, keepdims=True)
    return mean


def shaped(result: Array, like_HWC: Array) -> Array:
    """Return a result of OpenCV, which drops the axis of a single channel, with that axis."""
    return result.reshape(like_HWC.shape)
