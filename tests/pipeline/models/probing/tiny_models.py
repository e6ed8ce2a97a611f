"""Small models with five classes, their images, and the names of their heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.plugin_api import ImageSpec

_VIT = {
    "name": "vit",
    "patch_embedding": {"name": "conv", "patch_size": 4},
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 32,
    "dropout": 0.5,
}
MODELS: dict[str, tuple[dict[str, Any], int, str]] = {
    # settings, side of the images, name of the head
    "vit": (_VIT, 16, "head"),
    "tanh": ({**_VIT, "head": "tanh"}, 16, "head.output"),
    "torchvision": (
        {"name": "torchvision", "architecture": "mobilenet_v3_small"},
        32,
        "network.classifier.3",
    ),
    "timm": ({"name": "timm", "architecture": "vit_tiny_patch16_224"}, 32, "network.head"),
}


def image_spec(side: int) -> ImageSpec:
    """Return the spec of RGB images whose channels are normalised differently."""
    return ImageSpec(
        channels=3,
        height=side,
        width=side,
        mean=(0.3, 0.5, 0.6),
        std=(0.2, 0.3, 0.25),
        resize="crop",
    )


def tiny_model(name: str) -> tuple[nn.Module, ImageSpec, str]:
    """Return a model with random weights, its images, and the name of its head."""
    choice, side, head = MODELS[name]
    torch.manual_seed(0)
    model = build_model(ModelChoice.model_validate(choice), image_spec(side), 5)
    return model, image_spec(side), head


def stored_images(count: int, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return random images (N, H, W, C)."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
