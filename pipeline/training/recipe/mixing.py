"""MixUp and CutMix: each image of a batch is mixed with the one before it, and so are the targets.

What is drawn depends only on (seed, step), so a resumed run repeats it. Given the same draw, the
result is that of torchvision.transforms.v2.MixUp and CutMix.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.losses import one_hot

_STREAM = 0x6D6978
"""Keeps these numbers apart from others that are drawn for the same step."""


@dataclass(frozen=True)
class Mix:
    """How the images of one batch are mixed."""

    share: float
    """Share of the image itself, from 0 to 1; the rest belongs to the one before it in the
    batch."""
    box: tuple[int, int, int, int] | None = None
    """Top, left, bottom and right of the region that CutMix replaces; None for MixUp."""


def draw_mix(config: TrainingConfig, seed: int, step: int, height: int, width: int) -> Mix | None:
    """Return how to mix the batch of a step; None if neither MixUp nor CutMix is on.

    If both are on, each batch gets one of them, with equal probability.

    Args:
        config: the training's settings: the two alphas of the beta distributions.
        seed: the seed of the run.
        step: number of updates before this one.
        height: height of the images, in pixels.
        width: width of the images, in pixels.
    """
    if not config.mixup and not config.cutmix:
        return None
    generator = np.random.default_rng([seed, step, _STREAM])
    both = bool(config.mixup and config.cutmix)
    cut = generator.random() < 0.5 if both else bool(config.cutmix)  # noqa: PLR2004 - a half
    alpha = config.cutmix if cut else config.mixup
    share = float(generator.beta(alpha, alpha))
    return _cut(generator, share, height, width) if cut else Mix(share)


def _cut(generator: np.random.Generator, share: float, height: int, width: int) -> Mix:
    """Return a box of the drawn area around a random pixel; what lies outside is cut off."""
    row, column = int(generator.integers(height)), int(generator.integers(width))
    half = 0.5 * math.sqrt(1.0 - share)
    half_height, half_width = int(half * height), int(half * width)
    top, bottom = max(row - half_height, 0), min(row + half_height, height)
    left, right = max(column - half_width, 0), min(column + half_width, width)
    return Mix(1.0 - (bottom - top) * (right - left) / (height * width), (top, left, bottom, right))


def mix_images(images_BCHW: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Return mixed images; the input is not modified.

    Args:
        images_BCHW: the images to mix, floating point, on any device.
        mix: what was drawn for the batch.
    """
    before_BCHW = images_BCHW.roll(1, 0)
    if mix.box is None:
        return before_BCHW.mul_(1.0 - mix.share).add_(images_BCHW, alpha=mix.share)
    top, left, bottom, right = mix.box
    mixed_BCHW = images_BCHW.clone()
    mixed_BCHW[:, :, top:bottom, left:right] = before_BCHW[:, :, top:bottom, left:right]
    return mixed_BCHW


def mix_targets(targets: torch.Tensor, num_classes: int, mix: Mix) -> torch.Tensor:
    """Return soft targets (B, K), float32: of each class, its shares in the mixed image.

    A row of probabilities sums to 1. Of two sets of labels, what both have is 1, and what one has
    is that image's share.

    Args:
        targets: class indices (B), probabilities (B, K), or sets of labels as 0 and 1 (B, K).
        num_classes: number of classes, K.
        mix: what was drawn for the batch.
    """
    own_BK = one_hot(targets, num_classes) if targets.ndim == 1 else targets
    return own_BK.roll(1, 0).mul_(1.0 - mix.share).add_(own_BK, alpha=mix.share)


def dominant_labels(labels_B: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Return the class that has the larger share of each mixed image."""
    return labels_B if mix.share >= 0.5 else labels_B.roll(1, 0)  # noqa: PLR2004 - a half
