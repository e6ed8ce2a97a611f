"""RandAugment and TrivialAugment: a few random operations on each image.

Both choose from the same fourteen operations. The names, ranges and 31 magnitudes are those of
torchvision.transforms.RandAugment and TrivialAugmentWide, which follow the papers.

They compute what torchvision.transforms.functional computes; the tests compare them. Geometric
operations interpolate bilinearly and fill with grey, as in AutoAugment (arXiv 1805.09501). On a
GPU, `policy_batch_module` computes the same for whole batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import albumentations
import cv2
import numpy as np
import torch

from patchline.plugins.augmentations.policy_batch_module import apply_operations

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
_GREY = (128, 128, 128)
_LEVELS = np.arange(256, dtype=np.float32)
_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_LUMA = (0.299, 0.587, 0.114)


def shear_x(image_HWC: Pixels, amount: float) -> Pixels:
    """Move each row by `amount` times its distance to the centre."""
    return _warp(image_HWC, np.array([[1.0, amount], [0.0, 1.0]]))


def shear_y(image_HWC: Pixels, amount: float) -> Pixels:
    """Move each column by `amount` times its distance to the centre."""
    return _warp(image_HWC, np.array([[1.0, 0.0], [amount, 1.0]]))


def translate_x(image_HWC: Pixels, pixels: float) -> Pixels:
    """Move the image to the right."""
    return _warp(image_HWC, np.eye(2), (pixels, 0.0))


def translate_y(image_HWC: Pixels, pixels: float) -> Pixels:
    """Move the image down."""
    return _warp(image_HWC, np.eye(2), (0.0, pixels))


def rotate(image_HWC: Pixels, degrees: float) -> Pixels:
    """Rotate counterclockwise around the centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _warp(image_HWC, np.array([[cos, sin], [-sin, cos]]))


def _warp(image_HWC: Pixels, linear: Matrix, shift: tuple[float, float] = (0.0, 0.0)) -> Pixels:
    """Map the point p (x, y) to linear @ (p - centre) + centre + shift."""
    height, width = image_HWC.shape[:2]
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    offset = centre + shift - linear @ centre
    matrix = np.column_stack([linear, offset])
    warped: Any = cv2.warpAffine(
        image_HWC,
        matrix,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=_GREY,
    )
    result: Pixels = warped.reshape(image_HWC.shape)
    return result


def brightness(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with black; factor 1 is the image."""
    return _look_up(image_HWC, _LEVELS * factor)


def contrast(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with the mean grey; factor 1 is the image."""
    mean = float(_luma(image_HWC).mean())
    return _look_up(image_HWC, _LEVELS * factor + mean * (1 - factor))


def colour(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with the greyscale image; factor 1 is the image."""
    if image_HWC.shape[2] == 1:
        return image_HWC
    return _blend(image_HWC, _luma(image_HWC)[:, :, None], factor)


def sharpness(image_HWC: Pixels, factor: float) -> Pixels:
    """Blend with a smoothed image; factor 1 is the image. The border pixels stay."""
    smoothed = image_HWC.astype(np.float32)
    inner = cv2.filter2D(smoothed, -1, _SMOOTHING).reshape(image_HWC.shape)
    smoothed[1:-1, 1:-1] = np.rint(inner[1:-1, 1:-1])
    return _blend(image_HWC, smoothed, factor)


def posterize(image_HWC: Pixels, bits: float) -> Pixels:
    """Keep the highest bits of each value."""
    return image_HWC & np.uint8(256 - 2 ** (8 - int(bits)))


def solarize(image_HWC: Pixels, threshold: float) -> Pixels:
    """Invert the values from a threshold on."""
    return _look_up(image_HWC, np.where(threshold <= _LEVELS, 255 - _LEVELS, _LEVELS))


def autocontrast(image_HWC: Pixels) -> Pixels:
    """Stretch each channel to the full range."""
    channels = []
    for channel_HW in np.moveaxis(image_HWC, 2, 0):
        low, high = float(channel_HW.min()), float(channel_HW.max())
        scaled = (_LEVELS - low) * (255 / (high - low)) if high > low else _LEVELS
        channels.append(_look_up(channel_HW, scaled))
    return np.stack(channels, axis=2)


def equalize(image_HWC: Pixels) -> Pixels:
    """Equalise the histogram of each channel, as PIL does."""
    return np.stack([_equalize(channel) for channel in np.moveaxis(image_HWC, 2, 0)], axis=2)


def _equalize(channel_HW: Pixels) -> Pixels:
    histogram = np.bincount(channel_HW.ravel(), minlength=256)
    present = histogram[histogram > 0]
    step = int(present[:-1].sum()) // 255
    if step == 0:
        return channel_HW
    before = np.concatenate([[0], np.cumsum(histogram)[:-1]])
    return _look_up(channel_HW, (before + step // 2) // step)


def _luma(image_HWC: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the greyscale image (H, W), in whole numbers."""
    if image_HWC.shape[2] == 1:
        return image_HWC[:, :, 0].astype(np.float32)
    return np.floor(image_HWC.astype(np.float32) @ np.array(_LUMA, np.float32))


def _blend(
    image_HWC: Pixels, other: np.ndarray[Any, np.dtype[np.float32]], factor: float
) -> Pixels:
    return np.clip(image_HWC * np.float32(factor) + other * (1 - factor), 0, 255).astype(np.uint8)


def _look_up(image: Pixels, table: np.ndarray[Any, Any]) -> Pixels:
    found: Any = cv2.LUT(image, np.clip(table, 0, 255).astype(np.uint8))
    result: Pixels = found.reshape(image.shape)
    return result


BINS = 31
"""Number of magnitudes, from 0 to 30."""


@dataclass(frozen=True)
class Ranges:
    """The strongest change that each operation makes, at magnitude 30."""

    shear: float
    pixels_x: float
    """The distance of a translation to the side, in pixels."""
    pixels_y: float
    """The distance of a translation up or down, in pixels."""
    rotation: float
    """The angle of a rotation, in degrees."""
    enhancement: float
    """Largest distance of the factor of brightness, colour, contrast and sharpness from 1."""
    dropped_bits: int
    """The number of the 8 bits of a value that posterize drops."""


def randaugment_ranges(height: int, width: int) -> Ranges:
    """Return the ranges of RandAugment (arXiv 1909.13719, table 6)."""
    share = 150 / 331
    return Ranges(0.3, share * width, share * height, 30.0, 0.9, 4)


def trivialaugment_ranges(height: int, width: int) -> Ranges:
    """Return the wide ranges of TrivialAugment (arXiv 2103.10158, table 1).

    A translation by 32 pixels would leave nothing of a smaller image, so it is limited to the side.
    """
    return Ranges(0.99, min(32.0, width), min(32.0, height), 135.0, 0.99, 6)


_CHANGES: dict[str, Callable[[Pixels, float], Pixels]] = {
    "identity": lambda image_HWC, _: image_HWC,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": lambda image_HWC, _: autocontrast(image_HWC),
    "equalize": lambda image_HWC, _: equalize(image_HWC),
}
OPERATIONS = tuple(_CHANGES)
"""In the order of the draws, which seeds depend on."""
_SIGNED = {
    "shear_x": "shear",
    "shear_y": "shear",
    "translate_x": "pixels_x",
    "translate_y": "pixels_y",
    "rotate": "rotation",
}
"""Operations with a direction, and the ranges of their amounts."""
_FACTORS = ("brightness", "colour", "contrast", "sharpness")


class Operation(NamedTuple):
    """One operation, and how much it changes."""

    name: str
    """One of `OPERATIONS`."""
    amount: float
    """The argument of the operation's function; 0 where it has none."""


def choose_operation(name: str, magnitude: int, ranges: Ranges, *, negative: bool) -> Operation:
    """Return an operation at a magnitude from 0 to 30.

    Args:
        name: one of `OPERATIONS`.
        magnitude: the magnitude, from 0 to 30; 0 changes nothing, or next to nothing.
        ranges: the strongest change that each operation makes.
        negative: the direction of geometric operations and enhancements.
    """
    strength = magnitude / (BINS - 1)
    sign = -1.0 if negative else 1.0
    if name in _SIGNED:
        return Operation(name, sign * strength * float(getattr(ranges, _SIGNED[name])))
    if name in _FACTORS:
        return Operation(name, 1.0 + sign * strength * ranges.enhancement)
    if name == "posterize":
        return Operation(name, 8 - round(strength * ranges.dropped_bits))
    if name == "solarize":
        return Operation(name, 255.0 * (1 - strength))
    return Operation(name, 0.0)


class RandomOperations(albumentations.ImageOnlyTransform):  # type: ignore[misc]  # no annotations
    """Apply `num_ops` operations, each chosen at random.

    Args:
        ranges: the strongest change that each operation makes.
        num_ops: the number of operations for each image.
        magnitude: the magnitude of every operation, from 0 to 30; None chooses it at random.
    """

    def __init__(self, ranges: Ranges, num_ops: int, magnitude: int | None) -> None:
        super().__init__(p=1.0)
        self.ranges, self.num_ops, self.magnitude = ranges, num_ops, magnitude

    def get_params(self) -> dict[str, Any]:
        """Draw the operations of one image."""
        return {"operations": [self._draw() for _ in range(self.num_ops)]}

    def apply(self, img: Pixels, *, operations: list[Operation], **_named: Any) -> Pixels:
        """Apply the drawn operations to an image (H, W, C)."""
        for name, amount in operations:
            img = _CHANGES[name](img, amount)
        return img

    def _draw(self) -> Operation:
        name = self.py_random.choice(OPERATIONS)
        negative = self.py_random.random() < 0.5  # noqa: PLR2004 - half of the time
        magnitude = self.py_random.randrange(BINS) if self.magnitude is None else self.magnitude
        return choose_operation(name, magnitude, self.ranges, negative=negative)


class Policy(albumentations.Compose):  # type: ignore[misc]  # no annotations
    """The pipeline of `RandomOperations`, a `patchline.plugin_api.DrawnTransform`.

    Shapes: B images, K operations of each.

    Args:
        ranges: the strongest change that each operation makes.
        num_ops: the number of operations for each image.
        magnitude: the magnitude of every operation, from 0 to 30; None chooses it at random.
    """

    def __init__(self, ranges: Ranges, num_ops: int, magnitude: int | None) -> None:
        self._random_operations = RandomOperations(ranges, num_ops, magnitude)
        super().__init__([self._random_operations])

    def draw(self) -> np.ndarray[Any, Any]:
        """Return number and amount of each operation (K, 2), as a call draws them."""
        self.py_random.random()  # a call draws first whether the pipeline is applied
        drawn = self._random_operations.get_params()["operations"]
        return np.array([(OPERATIONS.index(name), amount) for name, amount in drawn])

    def change(self, images_BHWC: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return the images with the drawn operations (B, K, 2) applied, on their device."""
        return apply_operations(images_BHWC, drawn, OPERATIONS)
