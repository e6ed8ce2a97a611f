"""The operations of RandAugment and TrivialAugment for whole batches, on any device.

They compute what `policy_module` computes with OpenCV and NumPy for single images: operations that
move pixels to one level of 255, all others the same values.

Shapes: B images of a batch, K operations of each image, N images with the same operation, H height,
W width, C channels, P pixels, V = 256 values of a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import grid_sample

from patchline.plugins.augmentations.affine_module import as_bytes, as_floats

_GREY = 128.0
_LUMA: list[float] = torch.tensor((0.299, 0.587, 0.114)).tolist()
_VALUES = 256


def apply_operations(
    images_BHWC: torch.Tensor, drawn_BK2: torch.Tensor, names: Sequence[str]
) -> torch.Tensor:
    """Apply the operations of each image, one after another.

    Images with the same operation are changed together.

    Args:
        images_BHWC: the images, uint8.
        drawn_BK2: number and amount of each operation, float64, on the CPU: how many images have
            an operation is counted there, so that nothing waits for a GPU.
        names: the names of the operations, by their numbers.
    """
    on_device_BK2 = drawn_BK2.to(images_BHWC.device, non_blocking=True)
    for drawn_B2, on_device_B2 in zip(drawn_BK2.unbind(1), on_device_BK2.unbind(1), strict=True):
        counts = torch.bincount(drawn_B2[:, 0].long(), minlength=len(names)).tolist()
        order_B = on_device_B2[:, 0].argsort(stable=True)
        parts = zip(
            names,
            images_BHWC[order_B].split_with_sizes(counts),
            on_device_B2[order_B, 1].split_with_sizes(counts),
            strict=True,
        )
        changed = [_CHANGES[name](own, amounts) for name, own, amounts in parts if len(own)]
        images_BHWC = torch.cat(changed)[order_B.argsort()]
    return images_BHWC


def _keep(images_NHWC: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return images_NHWC


# -- operations that move pixels -------------------------------------------------------------------


def _shear_x(images_NHWC: torch.Tensor, amounts_N: torch.Tensor) -> torch.Tensor:
    x_1W, y_H1 = _distances(images_NHWC)
    return _read(images_NHWC, x_1W - amounts_N.float()[:, None, None] * y_H1, y_H1)


def _shear_y(images_NHWC: torch.Tensor, amounts_N: torch.Tensor) -> torch.Tensor:
    x_1W, y_H1 = _distances(images_NHWC)
    return _read(images_NHWC, x_1W, y_H1 - amounts_N.float()[:, None, None] * x_1W)


def _translate_x(images_NHWC: torch.Tensor, pixels_N: torch.Tensor) -> torch.Tensor:
    x_1W, y_H1 = _distances(images_NHWC)
    return _read(images_NHWC, x_1W - pixels_N.float()[:, None, None], y_H1)


def _translate_y(images_NHWC: torch.Tensor, pixels_N: torch.Tensor) -> torch.Tensor:
    x_1W, y_H1 = _distances(images_NHWC)
    return _read(images_NHWC, x_1W, y_H1 - pixels_N.float()[:, None, None])


def _rotate(images_NHWC: torch.Tensor, degrees_N: torch.Tensor) -> torch.Tensor:
    x_1W, y_H1 = _distances(images_NHWC)
    angles_N11 = degrees_N.deg2rad()[:, None, None]
    cos_N11, sin_N11 = angles_N11.cos().float(), angles_N11.sin().float()
    return _read(images_NHWC, cos_N11 * x_1W - sin_N11 * y_H1, sin_N11 * x_1W + cos_N11 * y_H1)


def _distances(images_NHWC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far columns (1, W) and rows (H, 1) are from the centre, in pixels."""
    _, height, width, _ = images_NHWC.shape
    device = images_NHWC.device
    x_1W = (torch.arange(width, device=device) - (width - 1) / 2)[None]
    y_H1 = (torch.arange(height, device=device) - (height - 1) / 2)[:, None]
    return x_1W, y_H1


def _read(images_NHWC: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the pixels at distances from the centre, interpolated; grey beyond the image.

    Args:
        images_NHWC: the images, uint8.
        x: the distances to the right, of a shape that broadcasts with `y` to (N, H, W).
        y: the distances downwards.
    """
    size = _, height, width = images_NHWC.shape[:3]
    grid_NHW2 = torch.stack(
        [(x * (2 / width)).expand(size), (y * (2 / height)).expand(size)], dim=-1
    )
    images_NCHW = as_floats(images_NHWC) - _GREY
    read_NCHW = grid_sample(
        images_NCHW, grid_NHW2, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return as_bytes(read_NCHW + _GREY)


# -- operations that change values -----------------------------------------------------------------


def _change_brightness(images_NHWC: torch.Tensor, factors_N: torch.Tensor) -> torch.Tensor:
    return _look_up(images_NHWC, _levels(images_NHWC) * factors_N.float()[:, None, None])


def _change_contrast(images_NHWC: torch.Tensor, factors_N: torch.Tensor) -> torch.Tensor:
    luma_NHW = _luma(images_NHWC)
    pixels = luma_NHW[0].numel()
    means_N = luma_NHW.sum((1, 2), dtype=torch.float64).float() / pixels
    added_N = (means_N.double() * (1 - factors_N)).float()
    tables_N1V = _levels(images_NHWC) * factors_N.float()[:, None, None] + added_N[:, None, None]
    return _look_up(images_NHWC, tables_N1V)


def _change_colour(images_NHWC: torch.Tensor, factors_N: torch.Tensor) -> torch.Tensor:
    if images_NHWC.shape[3] == 1:
        return images_NHWC
    return _blend(images_NHWC, _luma(images_NHWC)[..., None], factors_N)


def _sharpen(images_NHWC: torch.Tensor, factors_N: torch.Tensor) -> torch.Tensor:
    smoothed_NHWC = images_NHWC.float()
    rows = smoothed_NHWC[:, :-2] + smoothed_NHWC[:, 1:-1] + smoothed_NHWC[:, 2:]
    sums = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    sums = sums + 4 * smoothed_NHWC[:, 1:-1, 1:-1]
    smoothed_NHWC[:, 1:-1, 1:-1] = (sums / 13).round()  # never half-way between two numbers
    return _blend(images_NHWC, smoothed_NHWC, factors_N)


def _posterize(images_NHWC: torch.Tensor, bits_N: torch.Tensor) -> torch.Tensor:
    dropped_N11 = (8 - bits_N).long()[:, None, None]
    return _look_up(images_NHWC, (_levels(images_NHWC).long() >> dropped_N11) << dropped_N11)


def _solarize(images_NHWC: torch.Tensor, thresholds_N: torch.Tensor) -> torch.Tensor:
    levels_V = _levels(images_NHWC)
    are_bright = thresholds_N.float()[:, None, None] <= levels_V
    return _look_up(images_NHWC, torch.where(are_bright, 255 - levels_V, levels_V))


def _stretch(images_NHWC: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    levels_V = _levels(images_NHWC)
    lowest_NC1 = images_NHWC.amin((1, 2))[..., None].float()
    spans_NC1 = images_NHWC.amax((1, 2))[..., None].float() - lowest_NC1
    factors_NC1 = (255 / spans_NC1.double()).float()
    scaled_NCV = (levels_V - lowest_NC1) * factors_NC1
    return _look_up(images_NHWC, torch.where(spans_NC1 > 0, scaled_NCV, levels_V))


def _equalize(images_NHWC: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    # Sorted instead of counted: sums by atomic operations are not repeatable on a GPU.
    values_NCP = images_NHWC.permute(0, 3, 1, 2).flatten(2).contiguous()
    sorted_NCP = values_NCP.sort(-1).values
    levels_V = _levels(images_NHWC)
    levels_NCV = levels_V.byte().expand(*sorted_NCP.shape[:2], -1).contiguous()
    before_NCV = torch.searchsorted(sorted_NCP, levels_NCV)
    steps_NC1 = torch.searchsorted(sorted_NCP, sorted_NCP[..., -1:].contiguous()) // 255
    tables_NCV = (before_NCV + steps_NC1 // 2) // steps_NC1.clamp(min=1)
    return _look_up(images_NHWC, torch.where(steps_NC1 > 0, tables_NCV, levels_V.long()))


def _levels(images_NHWC: torch.Tensor) -> torch.Tensor:
    """Return the values of a pixel (V), float32, on the device of the images."""
    return torch.arange(_VALUES, dtype=torch.float32, device=images_NHWC.device)


def _look_up(images_NHWC: torch.Tensor, tables_NCV: torch.Tensor) -> torch.Tensor:
    """Return images by tables, one for each image or channel; what they hold is rounded down."""
    count, channels, _ = tables_NCV.shape
    first = torch.arange(count * channels, device=images_NHWC.device) * _VALUES
    values = tables_NCV.clamp(0, 255).byte().flatten()
    return values[images_NHWC.long() + first.view(count, 1, 1, channels)]


def _blend(
    images_NHWC: torch.Tensor, others_NHWC: torch.Tensor, factors_N: torch.Tensor
) -> torch.Tensor:
    factors_N111 = factors_N[:, None, None, None]
    blended_NHWC = images_NHWC * factors_N111.float() + others_NHWC * (1 - factors_N111).float()
    return blended_NHWC.clamp(0, 255).byte()


def _luma(images_NHWC: torch.Tensor) -> torch.Tensor:
    """Return the greyscale images (N, H, W), float32, in whole numbers."""
    if images_NHWC.shape[3] == 1:
        return images_NHWC[..., 0].float()
    # Each sum is rounded once, as by the fused additions of NumPy's products. How these round grey
    # pixels depends on the processor, and on the width unless 8 divides it.
    red, green, blue = (
        weight * color for weight, color in zip(_LUMA, images_NHWC.double().unbind(3), strict=True)
    )
    return ((red.float() + green).float() + blue).float().floor()


_CHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "identity": _keep,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "brightness": _change_brightness,
    "colour": _change_colour,
    "contrast": _change_contrast,
    "sharpness": _sharpen,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _stretch,
    "equalize": _equalize,
}
