"""What all kinds of plugins share: settings, the format of the images, the version of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from patchline.pipeline.frozen_model import FrozenModel

API_VERSION = 1
"""Incremented when plugins written for the previous API would no longer work."""


class ValueRange(FrozenModel):
    """Which pixel values of one type become black and white."""

    kind: str
    """Type of the values: `uint16`, `int16`, `int32`, `float`, …"""

    low: float
    """Becomes 0, as does what is below."""

    high: float
    """Becomes 255, as does what is above."""

    found: str = ""
    """How the range was found."""


class PixelValues(FrozenModel):
    """What becomes of pixel values and bands that are not 8 bits of grey or RGB."""

    ranges: tuple[ValueRange, ...] = ()
    """For each type of values; empty if all images have 8 bits per color."""

    bands: tuple[int, ...] = ()
    """The bands that are used, counted from 1; empty for the colors of each image's format."""

    opacity: bool = True
    """Whether transparent pixels become white."""

    eight_bit: bool = True
    """Whether images of 8 bits per color are among those of the training."""


class ImageSpec(FrozenModel):
    """The format of a model's input images, after decoding and resizing."""

    channels: Literal[1, 3]
    """1 for greyscale, 3 for RGB."""

    height: int
    """Pixels."""

    width: int
    """Pixels."""

    mean: tuple[float, ...]
    """Per channel, of the training split, on the scale 0 to 1."""

    std: tuple[float, ...]
    """Per channel, of the training split, on the scale 0 to 1."""

    resize: Literal["crop", "squash", "pad"]
    """How an image of another shape is resized: scale and crop, squash, or scale and pad."""

    pixel_values: PixelValues = PixelValues()
    """What becomes of values and bands that are not 8 bits of grey or RGB."""


@dataclass(frozen=True)
class DataTraits:
    """Properties of the data, known once it has been read; they fill in settings left open."""

    channels: int
    height: int
    width: int
    num_classes: int
    mirror_symmetric: bool
    """Whether a mirrored image still shows its class (False for digits and letters)."""


class PluginConfig(FrozenModel):
    """Base class for the settings of a plugin."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Return the settings with everything that depends on the data filled in.

        Called once, before training. Raise `ConfigError` for a setting that does not fit the
        images; its message names the value, the rule and the remedy.
        """
        return self


C = TypeVar("C", bound=PluginConfig)
