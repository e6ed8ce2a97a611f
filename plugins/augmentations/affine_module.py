"""Affine transforms and changes of brightness of whole batches.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import grid_sample

from patchline.plugin_api import BatchRandom

if TYPE_CHECKING:
    import numpy as np

_BRIGHTEST = 255.0


class Placements(NamedTuple):
    """How each image of a batch is scaled, turned and shifted about its centre."""

    angle_B: torch.Tensor
    """The angle of the rotation, in radians."""
    scale_B2: torch.Tensor
    """The factors of width and height."""
    right_B1: torch.Tensor
    down_B1: torch.Tensor
    """The shift downwards; like the shift to the right, a number of whole pixels."""
    mirrored_B: torch.Tensor


def placements(
    random: BatchRandom,
    size: tuple[int, int],
    *,
    flip: bool,
    shift: float,
    scale: float,
    rotation: float,
) -> Placements:
    """Draw where each image is moved.

    Args:
        random: the source of the random numbers of each image.
        size: height and width of the images.
        flip: whether to mirror half of them.
        shift: the largest shift in each direction, as a fraction of the side; by whole pixels.
        scale: the largest change of each side, up or down, as a fraction.
        rotation: the largest angle in either direction, in degrees.
    """
    height, width = size
    angle_B = random.uniform(low=-math.radians(rotation), high=math.radians(rotation))
    scale_B2 = random.uniform(2, low=1 - scale, high=1 + scale)
    right_B1, down_B1 = (_whole_pixels(random, shift * side) for side in (width, height))
    mirrored_B = random.integers(0, 2).bool() if flip else torch.zeros_like(angle_B).bool()
    return Placements(angle_B, scale_B2, right_B1, down_B1, mirrored_B)


def move(images_BCHW: torch.Tensor, placed: Placements) -> torch.Tensor:
    """Scale, turn, shift and mirror each image of a batch at once.

    What comes into view continues the image by reflection; pixels are interpolated linearly.

    Args:
        images_BCHW: the images, float32.
        placed: the scale, angle, shift and mirroring of each image.
    """
    _, _, height, width = images_BCHW.shape
    # Where each pixel comes from: undo the shift, turn back, and undo the scale, in pixels.
    # Numbers, not tensors: a copy to a GPU would wait for it in each step.
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    x_BW = torch.arange(width, device=images_BCHW.device) - middle_x - placed.right_B1
    y_BH = torch.arange(height, device=images_BCHW.device) - middle_y - placed.down_B1
    cos_B11, sin_B11 = placed.angle_B.cos()[:, None, None], placed.angle_B.sin()[:, None, None]
    x_B1W, y_BH1 = x_BW[:, None, :], y_BH[:, :, None]
    sign_B = 1 - 2 * placed.mirrored_B.float()
    shrink_B = sign_B / placed.scale_B2[:, 0]
    across_BHW = (cos_B11 * x_B1W + sin_B11 * y_BH1) * shrink_B[:, None, None]
    down_BHW = (cos_B11 * y_BH1 - sin_B11 * x_B1W) / placed.scale_B2[:, 1, None, None]
    # grid_sample counts from the middle, and the outermost pixels are at -1 and 1
    half_x, half_y = max(middle_x, 0.5), max(middle_y, 0.5)
    grid_BHW2 = torch.stack([across_BHW / half_x, down_BHW / half_y], dim=-1)
    return grid_sample(
        images_BCHW, grid_BHW2, mode="bilinear", padding_mode="reflection", align_corners=True
    )


def move_in_turn(images_BHWC: torch.Tensor, placed: Placements) -> torch.Tensor:
    """Do what `move` does, image by image: several times as fast on a CPU for large images.

    OpenCV rounds where a pixel comes from to a 32nd of one, and the results to whole numbers.

    Args:
        images_BHWC: the images, uint8, on the CPU, of one to four channels.
        placed: the scale, angle, shift and mirroring of each image.
    """
    import cv2

    _, height, width, _ = images_BHWC.shape
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    cos_B, sin_B = placed.angle_B.double().cos(), placed.angle_B.double().sin()
    shrink_B = (1 - 2 * placed.mirrored_B.double()) / placed.scale_B2[:, 0]
    lower_B = 1 / placed.scale_B2[:, 1].double()
    x_B, y_B = middle_x + placed.right_B1[:, 0], middle_y + placed.down_B1[:, 0]
    sources_B23 = torch.stack(
        [
            cos_B * shrink_B, sin_B * shrink_B, middle_x - shrink_B * (cos_B * x_B + sin_B * y_B),
            -sin_B * lower_B, cos_B * lower_B, middle_y - lower_B * (cos_B * y_B - sin_B * x_B),
        ],
        dim=1,
    ).view(-1, 2, 3)  # fmt: skip
    how, border = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, cv2.BORDER_REFLECT_101
    images_BHWC = images_BHWC.contiguous()
    images, moved_BHWC = _for_opencv(images_BHWC), torch.empty_like(images_BHWC)
    for image, source_23, out in zip(
        images, sources_B23.numpy(), _for_opencv(moved_BHWC), strict=True
    ):
        cv2.warpAffine(image, source_23, (width, height), out, how, border)
    return moved_BHWC


def _for_opencv(images_BHWC: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the same pixels as OpenCV wants them: without the axis of a single channel."""
    pixels: np.ndarray[Any, Any] = images_BHWC.numpy()
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _whole_pixels(random: BatchRandom, most: float) -> torch.Tensor:
    """Return a number of pixels (B, 1) for each image, at most `most` in either direction."""
    return random.integers(-int(most), int(most) + 1, 1)


class Lights(NamedTuple):
    """How brightness and contrast of each image of a batch change."""

    contrast_B1: torch.Tensor
    """The factor of each image's pixels."""
    added_B1: torch.Tensor
    """The amount that is then added to pixels from 0 to 255."""


def lights(random: BatchRandom, *, brightness: float) -> Lights:
    """Draw the changes of half of the images.

    Args:
        random: the source of the random numbers of each image.
        brightness: the largest change of brightness and contrast, as a fraction.
    """
    changed_B1 = random.integers(0, 2, 1)
    contrast_B1 = 1 + changed_B1 * random.uniform(1, low=-brightness, high=brightness)
    added_B1 = changed_B1 * random.uniform(1, low=-brightness, high=brightness) * _BRIGHTEST
    return Lights(contrast_B1, added_B1)


def lit(images_BCHW: torch.Tensor, light: Lights) -> torch.Tensor:
    """Change brightness and contrast of images of float32, from 0 to 255."""
    return images_BCHW * light.contrast_B1[:, :, None, None] + light.added_B1[:, :, None, None]


def lit_in_turn(images_BHWC: torch.Tensor, light: Lights) -> torch.Tensor:
    """Change brightness and contrast of uint8 images on the CPU, by a table for each image."""
    import cv2

    levels_1V = torch.arange(_BRIGHTEST + 1)[None]
    tables_BV = (levels_1V * light.contrast_B1 + light.added_B1).round().clamp(0, _BRIGHTEST)
    lit_BHWC = torch.empty_like(images_BHWC)
    images, tables = _for_opencv(images_BHWC), tables_BV.byte().numpy()
    for image, table_V, out in zip(images, tables, _for_opencv(lit_BHWC), strict=True):
        cv2.LUT(image, table_V, out)
    return lit_BHWC


def as_floats(images_BHWC: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as float32 (B, C, H, W)."""
    return images_BHWC.permute(0, 3, 1, 2).float()


def as_bytes(images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return float images rounded to uint8 (B, H, W, C)."""
    rounded = images_BCHW.round().clamp(0, _BRIGHTEST).byte()
    return rounded.permute(0, 2, 3, 1).contiguous()
