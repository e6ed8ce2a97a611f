"""Transforms of whole batches: mirroring, crops of equal or random size, colors, and erasing.

Shapes: B batch, H height, W width, C channels, A attempts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch.nn.functional import grid_sample

from patchline.plugin_api import BatchRandom

_ATTEMPTS = 10
_RATIO_STEPS = 64


def flip_and_crop(
    images_BHWC: torch.Tensor, random: BatchRandom, *, flip: bool, alternate: bool, pad: float
) -> torch.Tensor:
    """Pad by reflection, crop a random window of the original size, and mirror half of the images.

    Args:
        images_BHWC: the images, uint8.
        random: the source of the random numbers that decide about the window and the mirroring.
        flip: whether to mirror.
        alternate: whether to mirror each image in every second epoch, instead of at random.
        pad: width of the border, as a fraction of the side; rounded to pixels.
    """
    _, height, width, _ = images_BHWC.shape
    rows_BH = _window(random, height, pad)
    columns_BW = _window(random, width, pad)
    if flip:
        mirrored_B = random.alternating() if alternate else random.integers(0, 2).bool()
        columns_BW = torch.where(mirrored_B[:, None], columns_BW.flip(1), columns_BW)
    return _gather(images_BHWC, rows_BH, columns_BW)


def _window(random: BatchRandom, side: int, pad: float) -> torch.Tensor:
    """Return the source index of each row or column (B, side) after padding and cropping."""
    border = min(round(pad * side), side - 1)
    start_B1 = random.integers(-border, border + 1, 1)
    position_BS = (start_B1 + torch.arange(side, device=start_B1.device)).abs()
    return (side - 1) - ((side - 1) - position_BS).abs()  # the border pixel is not repeated


def _gather(
    images_BHWC: torch.Tensor, rows_BH: torch.Tensor, columns_BW: torch.Tensor
) -> torch.Tensor:
    """Return the given rows and columns of each image; twenty times faster than plain indexing."""
    batch, height, width, channels = images_BHWC.shape
    device = images_BHWC.device
    first_row_B1 = torch.arange(batch, device=device)[:, None] * height
    lines = images_BHWC.reshape(batch * height, width * channels)
    lines = lines.index_select(0, (first_row_B1 + rows_BH).view(-1))
    values = columns_BW[:, :, None] * channels + torch.arange(channels, device=device)
    values = values.view(batch, 1, width * channels).expand(-1, height, -1)
    return lines.view(batch, height, -1).gather(2, values).view(images_BHWC.shape)


def erase(
    images_BHWC: torch.Tensor,
    random: BatchRandom,
    *,
    probability: float,
    area: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
) -> torch.Tensor:
    """Replace a random rectangle by noise (random erasing, arXiv 1708.04896, algorithm 1).

    Args:
        images_BHWC: the images, uint8.
        random: the source of the random numbers that decide about the rectangle and the noise.
        probability: the probability of erasing a part of an image.
        area: smallest and largest area, as fractions of the image.
        ratio: smallest and largest ratio of height to width, at least.
    """
    _, height, width, channels = images_BHWC.shape
    chosen_B1 = (random.uniform() < probability)[:, None]
    most = (height - 1, width - 1)
    heights_B1, widths_B1, fits_B1 = rectangles((height, width), most, random, area, ratio)
    rows_BH = _inside(random, heights_B1, height)
    rows_BH &= chosen_B1 & fits_B1
    columns_BW = _inside(random, widths_B1, width)
    values_BV = columns_BW.repeat_interleave(channels, 1)  # V = W * C
    # Bits instead of torch.where, which takes four times as long for bytes.
    erased_BHV = (rows_BH.byte() * 255)[:, :, None] & (values_BV.byte() * 255)[:, None, :]
    noise_BHV = random.pixels(height, width * channels)
    lines_BHV = images_BHWC.reshape(noise_BHV.shape)
    return (lines_BHV ^ ((lines_BHV ^ noise_BHV) & erased_BHV)).view(images_BHWC.shape)


def rectangles(
    size: tuple[int, int],
    most: tuple[int, int],
    random: BatchRandom,
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw the sides of a rectangle for each image, and whether it fits; all (B, 1).

    Area and logarithm of the ratio are evenly distributed. What is too large is drawn again, ten
    times.

    Args:
        size: height and width of the images.
        most: height and width of the largest rectangle that fits.
        random: the source of the random numbers of each image.
        area: smallest and largest area, as fractions of the image.
        ratio: smallest and largest ratio of height to width.
    """
    areas_BA = random.uniform(_ATTEMPTS, low=area[0], high=area[1]) * (size[0] * size[1])
    table = _ratios(ratio, areas_BA.device)
    ratios_BA = table[random.integers(0, _RATIO_STEPS, _ATTEMPTS)]
    heights_BA = (areas_BA * ratios_BA).sqrt().round().long()
    widths_BA = (areas_BA / ratios_BA).sqrt().round().long()
    fits_BA = (heights_BA <= most[0]) & (widths_BA <= most[1])
    first_B1 = fits_BA.int().argmax(1, keepdim=True)
    heights_B1, widths_B1 = (each.gather(1, first_B1) for each in (heights_BA, widths_BA))
    return heights_B1, widths_B1, fits_BA.any(1, keepdim=True)


@functools.lru_cache(maxsize=8)  # on a GPU, copying the table would wait for it in each step
def _ratios(ratio: tuple[float, float], device: torch.device) -> torch.Tensor:
    """Return the ratios to draw from: a table, as an exponential differs between devices."""
    low, high = (math.log(bound) for bound in ratio)
    steps = [math.exp(low + (high - low) * i / (_RATIO_STEPS - 1)) for i in range(_RATIO_STEPS)]
    return torch.tensor(steps, device=device)


def _inside(random: BatchRandom, length_B1: torch.Tensor, side: int) -> torch.Tensor:
    """Return which positions (B, side) a randomly placed segment covers."""
    start_B1 = (random.uniform(1) * (side - length_B1 + 1)).long()
    position_S = torch.arange(side, device=start_B1.device)
    return (position_S >= start_B1) & (position_S < start_B1 + length_B1)


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
        random: the source of the random numbers that decide about each window.
        smallest_area: the smallest area of a window, as a fraction of the image.
        largest_ratio: the largest ratio of the sides, in either direction.
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


def enlarge(
    images_BCHW: torch.Tensor, windows_B4: torch.Tensor, random: BatchRandom, *, flip: bool
) -> torch.Tensor:
    """Show the window of each image at the size of the image, and mirror half of the images.

    Pixels are interpolated linearly, without looking beyond the window's edge.

    Args:
        images_BCHW: the images, float32.
        windows_B4: the top, left, height and width of each image's window, in pixels.
        random: the source of the random numbers that decide about the mirroring.
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


def recolor(
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
        images_BCHW: the images, float32, from 0 to 255.
        random: the source of the random numbers that decide about the changes of each image.
        brightness: the largest change, as a fraction.
        contrast: the same.
        saturation: the same.
    """

    def factor(most: float) -> torch.Tensor:
        return random.uniform(1, 1, 1, low=1 - most, high=1 + most)

    images_BCHW = (images_BCHW * factor(brightness)).clamp(0, _BRIGHTEST)
    grey_B111 = _grey(images_BCHW).mean((1, 2, 3), keepdim=True)
    images_BCHW = _blend(grey_B111, images_BCHW, factor(contrast))
    if images_BCHW.shape[1] != len(_LUMA):
        return images_BCHW
    return _blend(_grey(images_BCHW), images_BCHW, factor(saturation))


def _grey(images_BCHW: torch.Tensor) -> torch.Tensor:
    if images_BCHW.shape[1] != len(_LUMA):
        return images_BCHW.mean(1, keepdim=True)
    red, green, blue = (images_BCHW[:, channel : channel + 1] for channel in range(3))
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _blend(
    first_BCHW: torch.Tensor, second_BCHW: torch.Tensor, weight_B111: torch.Tensor
) -> torch.Tensor:
    return torch.lerp(first_BCHW, second_BCHW, weight_B111).clamp(0, _BRIGHTEST)
