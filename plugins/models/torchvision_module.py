"""Models of torchvision as model plugins.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
import torchvision
from torch import nn

from patchline.plugin_api import ConfigError, DataTraits, ModelContext
from patchline.plugins.models.trial_build import check_by_trial

_STEM_CHANNELS = 3


class TorchvisionModel(nn.Module):
    """One model of torchvision: `images_BCHW -> logits_BK`; greyscale is repeated as RGB."""

    def __init__(self, architecture: str, context: ModelContext) -> None:
        super().__init__()
        image = context.image
        self.network = _network(architecture, image.height, image.width, context.num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        rgb_BCHW = images_BCHW.expand(-1, _STEM_CHANNELS, -1, -1)
        logits_BK: torch.Tensor = self.network(rgb_BCHW)
        return logits_BK


def names() -> list[str]:
    """Return the names of torchvision's classification models."""
    return sorted(torchvision.models.list_models(module=torchvision.models))


def check(architecture: str, traits: DataTraits) -> None:
    """Check that the model exists and takes images of this size.

    Raises:
        ConfigError: if it does not.
    """
    if architecture not in names():
        close = difflib.get_close_matches(architecture, names(), n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else "Try resnet18 or vit_b_16."
        raise ConfigError(
            f"model.architecture is {architecture!r}, but torchvision has no classification model "
            f"of that name. {hint}"
        )
    check_by_trial(
        lambda: _network(architecture, traits.height, traits.width, traits.num_classes),
        f"torchvision's {architecture}",
        (_STEM_CHANNELS, traits.height, traits.width),
    )


def _network(architecture: str, height: int, width: int, num_classes: int) -> nn.Module:
    wanted: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if architecture in ("googlenet", "inception_v3"):
        wanted |= {"aux_logits": False, "init_weights": False}
    elif architecture.startswith("vit_"):
        if height != width:
            raise ValueError("it takes square images only")
        wanted["image_size"] = height
    elif architecture.startswith("maxvit"):
        wanted["input_size"] = (height, width)
    builder = torchvision.models.get_model_builder(architecture)
    if not callable(builder) or "weights" not in inspect.signature(builder).parameters:
        raise ValueError("Patchline does not know how torchvision builds it")
    network: nn.Module = builder(**wanted)
    return network
