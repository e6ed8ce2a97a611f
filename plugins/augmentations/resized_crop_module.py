"""Crops of random size, enlarged, and changes of color, of whole batches.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import grid_sample

from patchline.plugin_api import BatchRandom
from patchline.plugins.augmentations.batch_module import rectangles

_BRIGHTEST = 255.0
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R BT.601)."""


def windows(
    size: Sequence[int], random: BatchRandom, *, smallest_area: float, largest_ratio: float
) -> torch.Tensor:
    """Return the window (B, 4) that each image shows: top, left, height and width, in pixels.

    Area and logarithm of the ratio are evenly distributed. Where no window fits, the whole image is
    shown.

    Args:
        size: height and width of the images.
        random: decides about each window.
        smallest_area: as a fraction of the image.
        largest_ratio: of the sides, in either direction.
    """
    height, width = size
    area, ratio = (smallest_area, 1.0), (1 / largest_ratio, largest_ratio)
    heights_B1, widths_B1, fits_B1 = rectangles(
        (height, width), (height, width), random, area, ratio
    )
    height_B1 = torch.where(fits_B1, heights_B1.clamp(min=1), height)
    width_B1 = torch.where(fits_B1, widths_B1.clamp(min=1), width)
    top_B1 = (random.uniform(1) * (height - height_B1 + 1)).floor()
    left_B1 = (random.uniform(1) * (width - width_B1 + 1)).floor()
    return torch.cat([top_B1, left_B1, height_B1, width_B1], 1)


def enlarged(
    images_BCHW: torch.Tensor, windows_B4: torch.Tensor, random: BatchRandom, *, flip: bool
) -> torch.Tensor:
    """Show the window of each image at the size of the image, and mirror half of the images.

    Pixels are interpolated linearly, without looking beyond the window's edge.

    Args:
        images_BCHW: float32.
        windows_B4: top, left, height and width, in pixels.
        random: decides about the mirroring.
        flip: whether to mirror.
    """
    batch, _, height, width = images_BCHW.shape
    top_B, left_B, shown_height_B, shown_width_B = windows_B4.unbind(1)
    y_BH = _positions(top_B, shown_height_B, height)
    x_BW = _positions(left_B, shown_width_B, width)
    if flip:
        x_BW = torch.where(random.integers(0, 2, 1).bool(), x_BW.flip(1), x_BW)
    grid_BHW2 = torch.stack(
        [
            x_BW[:, None, :].expand(batch, height, width),
            y_BH[:, :, None].expand(batch, height, width),
        ],
        dim=-1,
    )
    return grid_sample(
        images_BCHW, grid_BHW2, mode="bilinear", padding_mode="border", align_corners=True
    )


def _positions(first_B: torch.Tensor, length_B: torch.Tensor, side: int) -> torch.Tensor:
    """Return where each row or column (B, side) is read: -1 is the first pixel, 1 the last one."""
    middle_S = torch.arange(side, device=first_B.device) + 0.5
    inside_BS = middle_S * (length_B / side)[:, None] - 0.5
    inside_BS = torch.minimum(inside_BS.clamp(min=0), length_B[:, None] - 1)
    return (first_B[:, None] + inside_BS) * (2 / max(1, side - 1)) - 1


def recolored(
    images_BCHW: torch.Tensor,
    random: BatchRandom,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
) -> torch.Tensor:
    """Change brightness, contrast and saturation of each image, in this order.

    Each is a blend with black, with the image's mean grey, and with its grey image, as in
    torchvision's `ColorJitter`; the saturation of images without three channels stays.

    Args:
        images_BCHW: float32, from 0 to 255.
        random: decides about the changes of each image.
        brightness: the largest change, as a fraction.
        contrast: the same.
        saturation: the same.
    """

    def factor(most: float) -> torch.Tensor:
        return random.uniform(1, 1, 1, low=1 - most, high=1 + most)

    images_BCHW = (images_BCHW * factor(brightness)).clamp(0, _BRIGHTEST)
    grey_B111 = _grey(images_BCHW).mean((1, 2, 3), keepdim=True)
    images_BCHW = _blended(grey_B111, images_BCHW, factor(contrast))
    if images_BCHW.shape[1] != len(_LUMA):
        return images_BCHW
    return _blended(_grey(images_BCHW), images_BCHW, factor(saturation))


def _grey(images_BCHW: torch.Tensor) -> torch.Tensor:
    if images_BCHW.shape[1] != len(_LUMA):
        return images_BCHW.mean(1, keepdim=True)
    red, green, blue = (images_BCHW[:, channel : channel + 1] for channel in range(3))
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _blended(
    first_BCHW: torch.Tensor, second_BCHW: torch.Tensor, weight_B111: torch.Tensor
) -> torch.Tensor:
    return torch.lerp(first_BCHW, second_BCHW, weight_B111).clamp(0, _BRIGHTEST)
