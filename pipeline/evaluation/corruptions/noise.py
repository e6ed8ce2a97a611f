"""Noise: of low light, of electronics, of single bits."""

from __future__ import annotations

import numpy as np

from patchline.pipeline.evaluation.corruptions.pixel_values import Array


def gaussian_noise(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Add noise to every value, as in low light."""
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[severity]
    return values_HWC + random.normal(0, deviation, values_HWC.shape)


def shot_noise(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Count photons: so many for full brightness."""
    photons = (60, 25, 12, 5, 3)[severity]
    return random.poisson(np.clip(values_HWC, 0, 1) * photons) / photons


def impulse_noise(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Set a share of the values to 0 or 1."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity]
    is_hit, is_bright = (
        random.random((2, *values_HWC.shape)) < np.array([share, 0.5])[:, None, None, None]
    )
    return np.where(is_hit, is_bright.astype(values_HWC.dtype), values_HWC)
