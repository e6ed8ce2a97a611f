"""Progressive learning: the image size changes over the training.

As in EfficientTrain++ (arXiv 2405.08768), early steps see only low frequencies, which a smaller
image holds at a fraction of the cost. The size depends on the progress of the training alone.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import FULL_SIZE_FROM, TrainingConfig
from patchline.plugin_api import ImageSpec


class ProgressiveSize:
    """The size of the training images at each progress.

    Args:
        config: the training's settings, with the fraction of the size at the start.
        image: the full size.
        model: the model, which must take smaller images; one with a grid of patches gets multiples
            of a patch.

    Raises:
        ConfigError: if the model takes no images of the smaller size.
    """

    def __init__(self, config: TrainingConfig, image: ImageSpec, model: nn.Module) -> None:
        self.full_size = (image.height, image.width)
        self.small_size = _small_size(config.initial_image_scale, image, model)
        if self.small_size != self.full_size:
            self._check_model(config, image, model)

    def at(self, progress: float) -> tuple[int, int]:
        """Return height and width at a progress from 0 to 1."""
        return self.small_size if progress < FULL_SIZE_FROM else self.full_size

    def share_of_small(self, progress: float) -> float:
        """Return the fraction of the training until a progress that has seen smaller images."""
        if self.small_size == self.full_size:
            return 0.0
        return min(1.0, FULL_SIZE_FROM / max(progress, 1e-9))

    def resized(self, images_BCHW: torch.Tensor, progress: float) -> torch.Tensor:
        """Return float images at the size of a progress, antialiased."""
        size = self.at(progress)
        if size == self.full_size:
            return images_BCHW
        return functional.interpolate(
            images_BCHW, size, mode="bilinear", antialias=True, align_corners=False
        )

    def _check_model(self, config: TrainingConfig, image: ImageSpec, model: nn.Module) -> None:
        device = next(model.parameters()).device
        example = torch.zeros(1, image.channels, *self.small_size, device=device)
        was_training = model.training
        try:
            with torch.no_grad():
                model.eval()(example)
        except Exception as error:  # what a model raises for a size is its own choice
            height, width = self.small_size
            raise ConfigError(
                f"training.initial_image_scale is {config.initial_image_scale}, but the model "
                f"takes no {height}x{width} images. Set it to 1, or choose another model or patch "
                "embedding."
            ) from error
        finally:
            model.train(was_training)


def _small_size(scale: float, image: ImageSpec, model: nn.Module) -> tuple[int, int]:
    """Return the size at the start: whole patches, at least two a side."""
    pixels = (image.height, image.width)
    rows, columns = getattr(getattr(model, "patch_embedding", None), "grid", pixels)
    strides = (_stride(image.height, rows), _stride(image.width, columns))
    sides = zip(pixels, strides, strict=True)
    height, width = (
        min(side, max(2 * stride, round(side * scale / stride) * stride)) if scale < 1 else side
        for side, stride in sides
    )
    return height, width


def _stride(side: int, tokens: int) -> int:
    """Return the pixels from one token to the next; without padding fewer tokens fit than that."""
    if side % tokens == 0:
        return side // tokens
    return int(2 ** math.floor(math.log2(max(1.0, side / tokens))))
