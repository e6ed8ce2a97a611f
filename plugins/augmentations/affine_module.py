"""Affine transforms and changes of brightness of whole batches.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import grid_sample

from patchline.plugin_api import BatchRandom

_BRIGHTEST = 255.0


def moved(
    images_BCHW: torch.Tensor,
    random: BatchRandom,
    *,
    flip: bool,
    shift: float,
    scale: float,
    rotation: float,
) -> torch.Tensor:
    """Scale, turn and shift each image about its centre, and mirror half of the images.

    What comes into view continues the image by reflection; pixels are interpolated linearly.

    Args:
        images_BCHW: float32.
        random: decides about the transform of each image.
        flip: whether to mirror.
        shift: the largest shift in each direction, as a fraction of the side; by whole pixels.
        scale: the largest change of each side, up or down, as a fraction.
        rotation: the largest angle in either direction, in degrees.
    """
    _, _, height, width = images_BCHW.shape
    angle_B = random.uniform(low=-math.radians(rotation), high=math.radians(rotation))
    scale_B2 = random.uniform(2, low=1 - scale, high=1 + scale)
    right_B1, down_B1 = (_whole_pixels(random, shift * side) for side in (width, height))
    mirrored_B = random.integers(0, 2).bool() if flip else torch.zeros_like(angle_B).bool()
    # Where each pixel comes from: undo the shift, turn back, and undo the scale, in pixels.
    # Numbers, not tensors: a copy to a GPU would wait for it in each step.
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    x_BW = torch.arange(width, device=angle_B.device) - middle_x - right_B1
    y_BH = torch.arange(height, device=angle_B.device) - middle_y - down_B1
    cos_B11, sin_B11 = angle_B.cos()[:, None, None], angle_B.sin()[:, None, None]
    x_B1W, y_BH1 = x_BW[:, None, :], y_BH[:, :, None]
    sign_B = 1 - 2 * mirrored_B.float()
    across_BHW = (cos_B11 * x_B1W + sin_B11 * y_BH1) * (sign_B / scale_B2[:, 0])[:, None, None]
    down_BHW = (cos_B11 * y_BH1 - sin_B11 * x_B1W) / scale_B2[:, 1, None, None]
    # grid_sample counts from the middle, and the outermost pixels are at -1 and 1
    half_x, half_y = max(middle_x, 0.5), max(middle_y, 0.5)
    grid_BHW2 = torch.stack([across_BHW / half_x, down_BHW / half_y], dim=-1)
    return grid_sample(
        images_BCHW, grid_BHW2, mode="bilinear", padding_mode="reflection", align_corners=True
    )


def _whole_pixels(random: BatchRandom, most: float) -> torch.Tensor:
    """Return a number of pixels (B, 1) for each image, at most `most` in either direction."""
    return random.integers(-int(most), int(most) + 1, 1)


def lit(images_BCHW: torch.Tensor, random: BatchRandom, *, brightness: float) -> torch.Tensor:
    """Change brightness and contrast of half of the images.

    Args:
        images_BCHW: float32, from 0 to 255.
        random: decides about the change of each image.
        brightness: the largest change of both, as a fraction.
    """
    changed_B1 = random.integers(0, 2, 1)
    contrast_B1 = 1 + changed_B1 * random.uniform(1, low=-brightness, high=brightness)
    added_B1 = changed_B1 * random.uniform(1, low=-brightness, high=brightness) * _BRIGHTEST
    return images_BCHW * contrast_B1[:, :, None, None] + added_B1[:, :, None, None]


def as_floats(images_BHWC: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as float32 (B, C, H, W)."""
    return images_BHWC.permute(0, 3, 1, 2).float()


def as_bytes(images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return float images rounded to uint8 (B, H, W, C)."""
    rounded = images_BCHW.round().clamp(0, _BRIGHTEST).byte()
    return rounded.permute(0, 2, 3, 1).contiguous()
