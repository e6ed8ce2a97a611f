"""Models, images and data for the tests of models: from seeds, with every weight drawn.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.plugin_system.plugin_loader import load_model
from patchline.plugin_api import DataTraits, ImageSpec, ModelContext


def image_spec(height: int = 32, width: int | None = None, channels: int = 3) -> ImageSpec:
    """Return what a model is fed: square unless a width is given."""
    size: Any = {"channels": channels, "height": height, "width": width or height}
    return ImageSpec(**size, mean=(0.5,) * channels, std=(0.25,) * channels, resize="crop")


def traits(height: int = 32, width: int | None = None) -> DataTraits:
    """Return what is known about data of 5 classes: square images unless a width is given."""
    return DataTraits(3, height, width or height, num_classes=5, mirror_symmetric=True)


def built(
    name: str, side: int = 32, num_classes: int = 5, *, embedding: Any = None, **settings: Any
) -> Any:
    """Build an installed model for square RGB images, from a seed, with its patch embedding."""
    torch.manual_seed(0)
    choice = {"name": name, "patch_embedding": embedding or {"name": "auto"}, **settings}
    return build_model(ModelChoice.model_validate(choice), image_spec(side), num_classes).eval()


def built_with(
    name: str, tokens: Callable[[int], nn.Module], num_classes: int = 5, **settings: Any
) -> Any:
    """Build an installed model on a patch embedding that is no plugin."""
    torch.manual_seed(0)
    plugin = load_model(name)
    context = ModelContext(image_spec(), num_classes, tokens)
    return plugin.build(plugin.config_class.model_validate(settings), context).eval()


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Draw every parameter: matrices that keep a signal's size, gains near 1, other things small.

    Frequencies of rotary positions and temperatures are drawn around what they are.
    """
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("freqs", "temperature")):
            parameter.add_(noise, alpha=0.1)
        elif name.endswith("bias"):
            parameter.copy_(0.2 * noise)
        elif parameter.ndim == 1:
            parameter.copy_(1 + 0.2 * noise)
        elif name.endswith("weight"):
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
        else:
            parameter.copy_(0.5 * noise)


def random_images(batch: int, side: int) -> torch.Tensor:
    """Return normal noise in the shape of square RGB images, (B, 3, H, W)."""
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(7))
