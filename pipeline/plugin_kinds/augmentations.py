"""Augmentations: random changes to the training images.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from patchline.pipeline.plugin_kinds.plugin_config import API_VERSION, C, PluginConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AugmentationContext:
    """Image size for building an augmentation."""

    channels: int
    height: int
    width: int


class BatchRandom(Protocol):
    """Random numbers for a batch of B images, as tensors on the device of the images.

    The numbers of an image depend only on the seed, the epoch, the image and the order of the
    calls; not on the other images of the batch. Each call returns new numbers.
    """

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Return float32 numbers (B, *shape), evenly distributed from `low` to `high`."""
        ...

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers (B, *shape), at least `low` and less than `high`."""
        ...

    def pixels(self, *shape: int) -> torch.Tensor:
        """Return uint8 numbers (B, *shape), evenly distributed from 0 to 255."""
        ...

    def alternating(self) -> torch.Tensor:
        """Return a bool for each image (B,), random in the first epoch, then alternating."""
        ...


@dataclass(frozen=True)
class Assumptions:
    """What an augmentation takes for granted: that these changes keep what an image shows.

    Shifts of up to a quarter of a side, crops to at least half of the area, rotations of up to 45
    degrees, noise, and changes of brightness and contrast need not be listed.
    """

    mirrors: str = ""
    """How it mirrors images whatever the data, in words such as "HorizontalFlip in flips.yaml";
    empty if it does not, or only by a setting `horizontal_flip`."""
    changes: tuple[str, ...] = ()
    """Others that nothing measures, in words such as "rotations of up to 90 degrees"."""


BatchTransform: TypeAlias = "Callable[[torch.Tensor, BatchRandom], torch.Tensor]"
"""Maps uint8 images (B, H, W, C) to uint8 images of the same shape, on the same device.

It must draw all random numbers from the `BatchRandom` and treat every image by itself: an image
looks the same in a batch of one. It must not modify its input.
"""


def _no_image_transform(_config: PluginConfig, _context: AugmentationContext) -> None:
    """Build nothing, for a plugin that transforms only whole batches."""


@dataclass(frozen=True)
class AugmentationPlugin(Generic[C]):
    """An augmentation: random transforms of training images.

    A plugin has a `build`, a `build_batch`, or both; then each image passes through the former
    first. Patchline seeds both; a plugin must not seed anything.
    """

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, AugmentationContext], Any] = _no_image_transform
    """Return an `albumentations.Compose` that maps a uint8 image (H, W, C) to a uint8 image of the
    same shape. It runs image by image, in the data-loader workers."""
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION
    build_batch: Callable[[C, AugmentationContext], BatchTransform] | None = None
    """Return a transform of whole batches. It runs on the training device, in the training process,
    and is much faster than `build` for small images."""
    assumptions: Callable[[C], Assumptions] | None = None
    """Return what the transforms take for granted with some settings. Without it, Patchline says
    that it is not known whether they keep the class."""
