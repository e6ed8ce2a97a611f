"""Weather: snow, fog, and bright light. Frost needs the authors' photographs, so it is left out."""

from __future__ import annotations

import cv2
import numpy as np

from patchline.pipeline.evaluation.corruptions.pixel_values import (
    Array,
    convolved,
    grey,
    line_kernel,
    scale_of,
    zoomed,
)


def snow(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Whiten the image, and let flakes fall in it."""
    mean, deviation, size, least, length, sigma, kept = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity]
    scale = scale_of(values_HWC)
    layer = random.normal(mean, deviation, (*values_HWC.shape[:2], 1)).astype(np.float32)
    layer = zoomed(layer, size)
    layer[layer < least] = 0
    direction = random.uniform(-135, -45)
    layer = convolved(
        np.clip(layer, 0, 1), line_kernel(2 * length * scale, sigma * scale, direction)
    )
    whitened = np.maximum(values_HWC, grey(values_HWC) * 1.5 + 0.5)
    return kept * values_HWC + (1 - kept) * whitened + layer + layer[::-1, ::-1]


def fog(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Lay clouds over the image, and keep its largest value."""
    density, decay = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))[severity]
    largest = max(float(values_HWC.max()), 1e-6)
    height, width = values_HWC.shape[:2]
    clouds = _clouds(max(height, width), decay, random)[:height, :width, None]
    return (values_HWC + density * clouds) * largest / (largest + density)


def brightness(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Brighten: the value of HSV for colours, all values otherwise."""
    del random  # every image is brightened alike
    added = (0.1, 0.2, 0.3, 0.4, 0.5)[severity]
    if values_HWC.shape[2] != 3:  # noqa: PLR2004 - RGB
        return values_HWC + added
    hsv = cv2.cvtColor(values_HWC, cv2.COLOR_RGB2HSV)
    hsv[:, :, 2] = np.clip(hsv[:, :, 2] + added, 0, 1)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def contrast(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Bring each channel closer to its mean."""
    del random  # every image loses contrast alike
    kept = (0.4, 0.3, 0.2, 0.1, 0.05)[severity]
    mean = values_HWC.mean(axis=(0, 1), keepdims=True)
    lower: Array = mean + kept * (values_HWC - mean)
    return lower


def _clouds(side: int, decay: float, random: np.random.Generator) -> Array:
    """Return a plasma fractal from 0 to 1: square with a side of at least `side`.

    Midpoint displacement, as in the paper's code: each level is twice as fine, its deviations
    smaller by `decay`.
    """
    size = 1 << max(1, (side - 1).bit_length())
    field: Array = np.zeros((1, 1), np.float32)
    amplitude = 1.0
    while field.shape[0] < size:
        finer = field.shape[0] * 2
        field = cv2.resize(field, (finer, finer), interpolation=cv2.INTER_LINEAR)
        field = field.reshape(finer, finer)
        field += (amplitude * random.uniform(-1, 1, field.shape)).astype(np.float32)
        amplitude /= decay
    field -= field.min()
    return field / max(float(field.max()), 1e-6)
