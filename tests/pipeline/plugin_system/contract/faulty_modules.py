"""Faulty patch embeddings and models, each with its check and a part of what the check says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field
from torch import nn

from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    ConfigError,
    DataTraits,
    ModelPlugin,
    PatchEmbeddingPlugin,
    PatchTokens,
    PluginConfig,
)


class Embedding(nn.Module):
    """A patch embedding for images of any size."""

    def __init__(self, _config: PluginConfig, context: Any) -> None:
        super().__init__()
        stride = min(8, context.height, context.width)
        self.grid = (context.height // stride, context.width // stride)
        self.projection = nn.Conv2d(context.channels, context.embed_dim, stride, stride)

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the tokens and their grid."""
        features_BDhw: torch.Tensor = self.projection(images_BCHW)
        return PatchTokens(self.changed(features_BDhw.flatten(2).transpose(1, 2)), self.grid)

    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens; what a faulty embedding does to them goes here."""
        return tokens_BND


class Model(nn.Module):
    """A model for images of any size; a number of its own replaces that of the classes."""

    def __init__(self, _config: PluginConfig, context: Any, logits: int | None = None) -> None:
        super().__init__()
        width = 16 * context.image.channels
        self.head = nn.Linear(width, logits or context.num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the logits."""
        return self.head(nn.functional.adaptive_avg_pool2d(images_BCHW, 4).flatten(1))


class PlainTuple(Embedding):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return tuple(super().forward(images_BCHW))


class OtherGridReturned(Embedding):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW)._replace(grid=(16, 1))


class ColumnByColumn(Embedding):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        tokens_BDhw = self.projection(images_BCHW).transpose(2, 3)
        return PatchTokens(tokens_BDhw.flatten(2).transpose(1, 2), self.grid)


class InPlaceInTraining(Embedding):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW.mul_(2) if self.training else images_BCHW)


class UnseededInTraining(Embedding):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND * random.random() if self.training else tokens_BND  # noqa: S311 - the fault


class GraphBreakInTraining(Embedding):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return 2 * tokens_BND if self.training and tokens_BND.mean().item() > 0 else tokens_BND


class NoNumbersForOddSizes(Embedding):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND if self.grid == (4, 4) else tokens_BND * float("nan")


class Fed(Embedding):
    """A model that builds a patch embedding."""

    def __init__(self, _config: PluginConfig, context: Any) -> None:
        nn.Module.__init__(self)
        self.embedding = context.patch_embedding(32)


class RefusesInTwoWords(PluginConfig):
    def resolved_for(self, traits: DataTraits) -> Self:
        if traits.width % 2:
            raise ConfigError("odd_size")
        return self


class BreaksItsOwnRule(PluginConfig):
    size: Annotated[int, Field(le=8)] | None = None
    """Pixels."""

    def resolved_for(self, traits: DataTraits) -> Self:
        return self.model_copy(update={"size": traits.height})


class ResolvesToNothing(PluginConfig):
    def resolved_for(self, _traits: DataTraits) -> Any:
        return None


class HasANameOfItsOwn(PluginConfig):
    name: str = "mine"
    """Which of the variants."""


def _plugin(build: Callable[..., Any], config_class: type[PluginConfig] = PluginConfig) -> Any:
    return PatchEmbeddingPlugin("For the tests", "", config_class, build)


def _model(build: Callable[..., Any], patch_embedding: str = NO_PATCH_EMBEDDING) -> Any:
    return ModelPlugin("For the tests", "", PluginConfig, build, patch_embedding)


def _changing(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a plugin whose embedding changes its tokens."""
    return _built(lambda module: setattr(module, "changed", change))


def _built(alter: Callable[[Any], object], kind: type[nn.Module] = Embedding) -> Any:
    """Return a plugin whose embedding is altered when it is built."""

    def build(*arguments: Any) -> nn.Module:
        module = kind(*arguments)
        alter(module)
        return module

    return _plugin(build)


def _converted(convert: Callable[[torch.Tensor], Any]) -> Any:
    """Return a plugin whose model converts its logits."""

    class Converting(Model):
        def forward(self, images_BCHW: torch.Tensor) -> Any:
            return convert(super().forward(images_BCHW))

    return _model(Converting)


def _crash(module: Embedding) -> None:
    if module.grid == (3, 4):
        raise ValueError("an odd number of rows")


def _state_outside(module: Embedding) -> None:
    offset_D = torch.randn(32)
    setattr(module, "changed", lambda tokens_BND: tokens_BND + offset_D)  # noqa: B010 - a method


def _drawn_by_numpy(module: Embedding) -> None:
    values = np.random.default_rng().normal(size=module.projection.weight.shape)
    module.projection.weight.data = torch.from_numpy(values).float()


def _constant(module: Embedding) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.02)


def _in_one_batch(tokens_BND: torch.Tensor) -> torch.Tensor:
    return tokens_BND if tokens_BND.shape[1] > 1 else tokens_BND[:1]


_LOGITS, _TOKENS = "returns_logits", "returns_patch_tokens"
_SIZES = "fits_or_refuses_every_size"
_GRADIENT = "every_parameter_gets_a_gradient"
_SEED, _JSON = "same_seed_same_output", "settings_survive_json"
_BFLOAT16, _ONNX, _COMPILES = "runs_in_bfloat16", "exports_to_onnx", "compiles"
FAULTS = {
    "no embedding": (_plugin(lambda *_: {}), _TOKENS, "It builds a dict."),
    "a list as grid": (
        _built(lambda module: setattr(module, "grid", [4, 4])), _TOKENS, "grid is [4, 4]."
    ),
    "columns and rows": (
        _built(lambda module: setattr(module, "grid", module.grid[::-1])), _TOKENS, "row by row"
    ),
    "column by column": (_plugin(ColumnByColumn), _TOKENS, "row by row"),
    "another grid returned": (_plugin(OtherGridReturned), _TOKENS, "returns the grid (16, 1)"),
    "a class token in front": (
        _changing(lambda tokens: torch.cat([tokens[:, :1], tokens], 1)), _TOKENS, "(2, 17, 32)"
    ),
    "a plain tuple": (_plugin(PlainTuple), _TOKENS, "It returns tuple."),
    "tokens in float64": (_changing(torch.Tensor.double), _TOKENS, "Keep float32."),
    "crashes for a size": (_built(_crash), _SIZES, "31x37 images it raised ValueError: an odd"),
    "refuses in two words": (_plugin(Embedding, RefusesInTwoWords), _SIZES, "'odd_size'. Write"),
    "loses an image": (_changing(_in_one_batch), _SIZES, "two 8x8 images it returns 1 outputs"),
    "nan for other sizes": (_plugin(NoNumbersForOddSizes), _SIZES, "or inf or nan"),
    "a parameter that is not used": (
        _built(lambda module: module.register_parameter("unused", nn.Parameter(torch.zeros(3)))),
        _GRADIENT,
        "embedding.unused gets no gradient.",
    ),
    "a blocked gradient": (
        _changing(lambda tokens: 0 * tokens), _GRADIENT, "projection.weight is zero. Check"
    ),
    "dropout in evaluation": (
        _changing(nn.functional.dropout), _SEED, "In evaluation mode its outputs"
    ),
    "unseeded in training": (_plugin(UnseededInTraining), _SEED, "In training mode"),
    "weights drawn by numpy": (_built(_drawn_by_numpy), _SEED, "Built twice from one seed"),
    "constant weights": (_built(_constant), _SEED, "Another seed gives the same weights."),
    "the batch's mean": (
        _changing(lambda tokens: tokens - tokens.mean(dim=0) / 2),
        "images_do_not_see_each_other",
        "depends on the other images.",
    ),
    "in place in training": (_plugin(InPlaceInTraining), "leaves_the_images_alone", "on a copy."),
    "state outside": (_built(_state_outside), "weights_survive_a_file", "Keep all state in"),
    "tokens of almost nothing": (
        _changing(lambda tokens: tokens * 1e-5), "overfits_one_batch", "300 steps on one batch"
    ),
    "values that cancel": (
        _changing(lambda tokens: (tokens + 300) - 300), _BFLOAT16, "its outputs differ by"
    ),
    "an overflow": (_changing(lambda tokens: tokens / 0), _BFLOAT16, "returns inf or nan."),
    "a graph break in training": (_plugin(GraphBreakInTraining), _COMPILES, "It raised"),
    "other answers when compiled": (
        _changing(lambda tokens: tokens + float(torch.compiler.is_dynamo_compiling())),
        _COMPILES,
        "Compiled, its outputs differ. The difference is",
    ),
    "other answers when exported": (
        _changing(lambda tokens: tokens + float(torch.compiler.is_exporting())),
        _ONNX,
        "The ONNX outputs differ. The difference is",
    ),
    "an operation that ONNX has not": (_changing(torch.special.i0), _ONNX, "i0"),
    "resolves against its rule": (_plugin(Embedding, BreaksItsOwnRule), _JSON, "cannot be read"),
    "resolves to nothing": (_plugin(Embedding, ResolvesToNothing), _JSON, "returns NoneType"),
    "a setting called name": (
        _plugin(Embedding, HasANameOfItsOwn), "explains_every_setting", "name is reserved."
    ),
    "no module": (_model(lambda *_: 3), _LOGITS, "It builds a int."),
    "builds an embedding and declares none": (_model(Fed), _LOGITS, "declares that it takes none"),
    "an unknown embedding": (_model(Fed, "konv"), _LOGITS, "Did you mean 'conv'?"),
    "ignores its embedding": (_model(Model, "conv"), _LOGITS, "never builds its patch embedding."),
    "always five classes": (
        _model(lambda config, context: Model(config, context, 5)), _LOGITS, "the shape (2, 5)."
    ),
    "a dictionary": (_converted(lambda logits: {"logits": logits}), _LOGITS, "It returns dict."),
    "logits in float64": (_converted(torch.Tensor.double), _LOGITS, "Keep float32."),
}  # fmt: skip
