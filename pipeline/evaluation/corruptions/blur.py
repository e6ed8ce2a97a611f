"""Blur: out of focus, behind frosted glass, in motion, zooming."""

from __future__ import annotations

import math

import cv2
import numpy as np

from patchline.pipeline.evaluation.corruptions.pixel_values import (
    Array,
    blurred,
    convolved,
    line_kernel,
    scale_of,
    zoomed,
)


def defocus_blur(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Smear every point over a disk."""
    del random  # every image is out of focus alike
    pixels, softness = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity]
    radius = pixels * scale_of(values_HWC)
    reach, fine = math.ceil(radius), 8  # drawn finer than the pixels, for radii below one
    size = (2 * reach + 1) * fine
    places = (np.arange(size) + 0.5) / fine - (reach + 0.5)
    disk = (places[:, None] ** 2 + places[None] ** 2 <= radius**2).astype(np.float32)
    kernel = disk.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).mean(axis=(1, 3))
    kernel = blurred(kernel[:, :, None], softness * scale_of(values_HWC))[:, :, 0]
    return convolved(values_HWC, kernel / kernel.sum())


def glass_blur(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Take each pixel from a random place nearby, between two blurs.

    The paper exchanges pixels one after the other; here all are drawn at once.
    """
    sigma, shift, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[severity]
    scale = scale_of(values_HWC)
    height, width = values_HWC.shape[:2]
    values = blurred(values_HWC, sigma * scale)
    for _ in range(rounds):
        moved = random.uniform(-shift, shift, (2, height, width)) * scale
        rows = np.arange(height)[:, None] + moved[0]
        columns = np.arange(width)[None] + moved[1]
        values = values[
            np.clip(np.rint(rows).astype(int), 0, height - 1),
            np.clip(np.rint(columns).astype(int), 0, width - 1),
        ]
    return blurred(values, sigma * scale)


def motion_blur(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Smear in a random direction, up to 45 degrees from the horizontal."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[severity]
    scale = scale_of(values_HWC)
    kernel = line_kernel(2 * radius * scale, sigma * scale, random.uniform(-45, 45))
    return convolved(values_HWC, kernel)


def zoom_blur(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Average over zooms."""
    del random  # every image is zoomed alike
    most, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[severity]
    factors = np.arange(1, most, step)
    total = values_HWC.copy()
    for factor in factors:
        total += zoomed(values_HWC, float(factor))
    return total / (len(factors) + 1)


def pixelate(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Shrink, and enlarge again."""
    del random  # every image is shrunk alike
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[severity]
    height, width = values_HWC.shape[:2]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    shrunk = cv2.resize(values_HWC, small, interpolation=cv2.INTER_AREA)
    enlarged = cv2.resize(shrunk, (width, height), interpolation=cv2.INTER_NEAREST)
    return enlarged.reshape(values_HWC.shape)
