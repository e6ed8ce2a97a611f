"""Faulty models, each for the check that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from patchline.plugin_api import NO_PATCH_EMBEDDING, ModelContext, ModelPlugin, PluginConfig
from tests.pipeline.plugin_system.contract.faults import Fault

_HIDDEN = 32


class NoSettings(PluginConfig):
    """There is nothing to set."""


class Sound(nn.Module):
    """A model without fault, for images of any size."""

    def __init__(self, _config: NoSettings, context: ModelContext) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * context.image.channels, _HIDDEN),
            nn.GELU(),
        )
        self.head = nn.Linear(_HIDDEN, self.num_logits(context))

    def num_logits(self, context: ModelContext) -> int:
        """Return how many logits there are."""
        return context.num_classes

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the logits."""
        return self.head(self.features(images_BCHW))


class Fed(nn.Module):
    """A model without fault that asks for its patch embedding."""

    def __init__(self, _config: NoSettings, context: ModelContext) -> None:
        super().__init__()
        self.patch_embedding = context.patch_embedding(_HIDDEN)
        self.head = nn.Sequential(nn.GELU(), nn.Linear(_HIDDEN, context.num_classes))

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the logits."""
        return self.head(self.patch_embedding(images_BCHW).tokens_BND.mean(dim=1))


class OneLogitMore(Sound):
    def num_logits(self, context: ModelContext) -> int:
        return context.num_classes + 1


class AlwaysFive(Sound):
    def num_logits(self, _context: ModelContext) -> int:
        return 5


class AnswersADictionary(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return {"logits": super().forward(images_BCHW)}


class Float64(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW).double()


def _plugin(build: Callable[..., Any], patch_embedding: str = NO_PATCH_EMBEDDING) -> Any:
    return ModelPlugin(
        summary="For the tests",
        paper="",
        config_class=NoSettings,
        build=build,
        patch_embedding=patch_embedding,
    )


SOUND, FED = _plugin(Sound), _plugin(Fed, "conv")
_LOGITS = "returns_logits"
FAULTS = [
    Fault("not a module", _plugin(lambda *_: 3), _LOGITS, "It builds a int."),
    Fault(
        "asks for an embedding and says that it takes none",
        _plugin(Fed),
        _LOGITS,
        "It builds a patch embedding, but declares that it takes none ",
    ),
    Fault(
        "an embedding that nobody installed",
        _plugin(Fed, "konv"),
        _LOGITS,
        "There is no patch_embedding plugin 'konv'. Did you mean 'conv'?",
    ),
    Fault(
        "one logit more",
        _plugin(OneLogitMore),
        _LOGITS,
        "Its logits have the shape (2, 6). For 2 images and 5 classes, (2, 5)",
    ),
    Fault(
        "always five classes",
        _plugin(AlwaysFive),
        _LOGITS,
        "the shape (2, 5). For 2 images and 2 classes, (2, 2) is expected. Use context.",
    ),
    Fault(
        "a dictionary",
        _plugin(AnswersADictionary),
        _LOGITS,
        "It returns dict. Return the logits as one tensor.",
    ),
    Fault(
        "float64",
        _plugin(Float64),
        _LOGITS,
        "Its logits are torch.float64. Keep float32.",
    ),
]
