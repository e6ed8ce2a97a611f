"""RandAugment and TrivialAugment: a few random operations on each image.

Both choose from the same fourteen operations. The names, ranges and 31 magnitudes are those of
torchvision.transforms.RandAugment and TrivialAugmentWide, which follow the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import albumentations
import numpy as np

from patchline.plugins.augmentations import operations

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Step = Callable[[Pixels], Pixels]

BINS = 31
"""Number of magnitudes, from 0 to 30."""


@dataclass(frozen=True)
class Ranges:
    """The strongest change that each operation makes, at magnitude 30."""

    shear: float
    pixels_x: float
    """Of a translation to the side."""
    pixels_y: float
    """Of a translation up or down."""
    rotation: float
    """Degrees."""
    enhancement: float
    """Largest distance of the factor of brightness, colour, contrast and sharpness from 1."""
    dropped_bits: int
    """Of the 8 bits of a value, by posterize."""


def randaugment_ranges(height: int, width: int) -> Ranges:
    """Return the ranges of RandAugment (arXiv 1909.13719, table 6)."""
    share = 150 / 331
    return Ranges(0.3, share * width, share * height, 30.0, 0.9, 4)


def trivialaugment_ranges(height: int, width: int) -> Ranges:
    """Return the wide ranges of TrivialAugment (arXiv 2103.10158, table 1).

    A translation by 32 pixels would leave nothing of a smaller image, so it is limited to the side.
    """
    return Ranges(0.99, min(32.0, width), min(32.0, height), 135.0, 0.99, 6)


_SIGNED: dict[str, tuple[Callable[..., Pixels], str]] = {
    "shear_x": (operations.shear_x, "shear"),
    "shear_y": (operations.shear_y, "shear"),
    "translate_x": (operations.translate_x, "pixels_x"),
    "translate_y": (operations.translate_y, "pixels_y"),
    "rotate": (operations.rotate, "rotation"),
}
_FACTORS: dict[str, Callable[..., Pixels]] = {
    "brightness": operations.brightness,
    "colour": operations.colour,
    "contrast": operations.contrast,
    "sharpness": operations.sharpness,
}
_FIXED: dict[str, Step] = {
    "autocontrast": operations.autocontrast,
    "equalize": operations.equalize,
}
OPERATIONS = ("identity", *_SIGNED, *_FACTORS, "posterize", "solarize", *_FIXED)


def step_of(name: str, magnitude: int, ranges: Ranges, *, negative: bool) -> Step | None:
    """Return an operation at a magnitude from 0 to 30; None for the identity.

    Args:
        name: one of `OPERATIONS`.
        magnitude: 0 changes nothing, or next to nothing.
        ranges: what the largest magnitude means.
        negative: the direction of geometric operations and enhancements.
    """
    strength = magnitude / (BINS - 1)
    sign = -1.0 if negative else 1.0
    if name in _SIGNED:
        change, field = _SIGNED[name]
        return partial(change, **{_AMOUNTS[field]: sign * strength * getattr(ranges, field)})
    if name in _FACTORS:
        return partial(_FACTORS[name], factor=1.0 + sign * strength * ranges.enhancement)
    if name == "posterize":
        return partial(operations.posterize, bits=8 - round(strength * ranges.dropped_bits))
    if name == "solarize":
        return partial(operations.solarize, threshold=255.0 * (1 - strength))
    return _FIXED.get(name)


_AMOUNTS = {
    "shear": "amount",
    "translate_x": "pixels",
    "translate_y": "pixels",
    "rotation": "degrees",
}


class RandomOperations(albumentations.ImageOnlyTransform):  # type: ignore[misc]  # no annotations
    """Apply `num_ops` operations, each chosen at random.

    Args:
        ranges: of the operations.
        num_ops: operations for each image.
        magnitude: of every operation, from 0 to 30; None chooses it at random.
    """

    def __init__(self, ranges: Ranges, num_ops: int, magnitude: int | None) -> None:
        super().__init__(p=1.0)
        self.ranges, self.num_ops, self.magnitude = ranges, num_ops, magnitude

    def get_params(self) -> dict[str, Any]:
        """Draw the operations of one image."""
        return {"steps": [self._drawn() for _ in range(self.num_ops)]}

    def apply(self, img: Pixels, *, steps: list[Step | None], **_named: Any) -> Pixels:
        """Apply the drawn operations to an image (H, W, C)."""
        for step in steps:
            img = img if step is None else step(img)
        return img

    def _drawn(self) -> Step | None:
        name = self.py_random.choice(OPERATIONS)
        negative = self.py_random.random() < 0.5  # noqa: PLR2004 - half of the time
        magnitude = self.py_random.randrange(BINS) if self.magnitude is None else self.magnitude
        return step_of(name, magnitude, self.ranges, negative=negative)
