"""Faulty patch embeddings, each for the check that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.plugin_api import (
    ConfigError,
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
    PluginConfig,
)
from tests.pipeline.plugin_system.contract.faults import Fault


class NoSettings(PluginConfig):
    """There is nothing to set."""


class EvenSizes(PluginConfig):
    """Refuses odd sizes in two words."""

    def resolved_for(self, traits: DataTraits) -> EvenSizes:
        """Refuse odd sizes."""
        if traits.width % 2:
            raise ConfigError("odd_size")
        return self


class Sound(nn.Module):
    """A patch embedding without fault, for images of any size."""

    def __init__(self, _config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__()
        stride = min(8, context.height, context.width)
        self.grid: Any = (context.height // stride, context.width // stride)
        self.projection = nn.Conv2d(context.channels, context.embed_dim, stride, stride)

    def tokens(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the tokens (B, N, D)."""
        features_BDhw: torch.Tensor = self.projection(images_BCHW)
        return features_BDhw.flatten(2).transpose(1, 2)

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the tokens and their grid."""
        return PatchTokens(self.changed(self.tokens(images_BCHW)), self.grid)

    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens; what a faulty embedding does to them goes here."""
        return tokens_BND


class GridIsMissing(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.secret = self.grid
        del self.grid

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        return PatchTokens(self.tokens(images_BCHW), self.secret)


class GridIsList(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.grid = list(self.grid)


class OtherGridReturned(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        rows, columns = self.grid
        return PatchTokens(self.tokens(images_BCHW), (rows * columns, 1))


class ClassTokenInFront(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens_BND[:, :1], tokens_BND], dim=1)


class PlainTuple(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return self.tokens(images_BCHW), self.grid


class Float64(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND.double()


class ColourOnly(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        stride = self.projection.stride
        self.projection = nn.Conv2d(3, context.embed_dim, stride, stride)  # type: ignore[arg-type]  # a tuple of two


class CrashesWhenBuilt(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        if context.height % 2:
            raise ValueError("an odd number of rows")


class LosesAnImage(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND if tokens_BND.shape[1] > 1 else tokens_BND[:1]


class UnusedParameter(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.unused = nn.Parameter(torch.zeros(3))


class FrozenParameter(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        for name, parameter in self.projection.named_parameters():
            parameter.requires_grad = name != "bias"


class HiddenParameter(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.scale = nn.Parameter(torch.ones(1))

    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND + 0 * self.scale


class Detached(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND.detach()


class DropoutAlwaysOn(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(tokens_BND, 0.1)


class NumpyWeights(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        values = np.random.default_rng().normal(size=self.projection.weight.shape)
        self.projection.weight.data = torch.from_numpy(values).float()


class ConstantWeights(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        nn.init.constant_(self.projection.weight, 0.02)
        nn.init.zeros_(self.projection.bias)  # type: ignore[arg-type]  # it has one


class BatchMean(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND - 0.5 * tokens_BND.mean(dim=0)


class ChangesInPlace(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW.clamp_(min=-1.0))


class HiddenState(Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.offset = torch.randn(context.embed_dim)

    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND + self.offset


class AlmostNothing(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND * 1e-5


class Cancelling(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return (tokens_BND + 300) - 300


class DividesByRounding(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        small = (torch.ones_like(tokens_BND) + 2.0**-10) - 1
        return tokens_BND * 2.0**-10 / small


class BranchesOnValues(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return 2 * tokens_BND if tokens_BND.isnan().any().item() else tokens_BND


class DifferentWhenCompiled(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND + float(torch.compiler.is_dynamo_compiling())


class DifferentWhenExported(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND + float(torch.compiler.is_exporting())


class UnknownToOnnx(Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        bessel_BND: torch.Tensor = torch.special.i0(tokens_BND)
        return tokens_BND + bessel_BND


def _plugin(
    build: Callable[..., Any], config_class: type[PluginConfig] = NoSettings
) -> PatchEmbeddingPlugin[Any]:
    return PatchEmbeddingPlugin(
        summary="For the tests", paper="", config_class=config_class, build=build
    )


SOUND = _plugin(Sound)
_TOKENS = "returns_patch_tokens"
_SIZES = "fits_or_refuses_every_size"
_GRADIENT = "every_parameter_gets_a_gradient"
_LEARNS = "overfits_one_batch"
_SEED = "same_seed_same_output"
FAULTS = [
    Fault("not a module", _plugin(lambda *_: {}), _TOKENS, "It builds a dict."),
    Fault("no grid", _plugin(GridIsMissing), _TOKENS, "Its attribute grid is None."),
    Fault("a list as grid", _plugin(GridIsList), _TOKENS, "Its attribute grid is [4, 4]."),
    Fault(
        "another grid returned",
        _plugin(OtherGridReturned),
        _TOKENS,
        "It returns the grid (16, 1), but its attribute grid is (4, 4).",
    ),
    Fault(
        "a class token in front",
        _plugin(ClassTokenInFront),
        _TOKENS,
        "Its tokens have the shape (2, 17, 32). For 2 images, a grid of 4x4",
    ),
    Fault(
        "a plain tuple",
        _plugin(PlainTuple),
        _TOKENS,
        "It returns tuple. Return PatchTokens(tokens_BND, grid).",
    ),
    Fault(
        "float64",
        _plugin(Float64),
        _TOKENS,
        "Its tokens are torch.float64. Keep float32.",
    ),
    Fault("colour only", _plugin(ColourOnly), _TOKENS, "It raised RuntimeError: Given groups=1"),
    Fault(
        "crashes when built for odd sizes",
        _plugin(CrashesWhenBuilt),
        _SIZES,
        "For 31x37 images it raised ValueError: an odd number of rows. Raise",
    ),
    Fault(
        "refuses in two words",
        _plugin(Sound, EvenSizes),
        _SIZES,
        "It refuses 31x37 images with 'odd_size'. Write a sentence",
    ),
    Fault(
        "loses an image", _plugin(LosesAnImage), _SIZES, "For two 8x8 images it returns 1 outputs"
    ),
    Fault(
        "a parameter that is not used",
        _plugin(UnusedParameter),
        _GRADIENT,
        "The parameter embedding.unused gets no gradient. Use it in forward",
    ),
    Fault(
        "a parameter that is frozen",
        _plugin(FrozenParameter),
        _GRADIENT,
        "The parameter embedding.projection.bias gets no gradient.",
    ),
    Fault(
        "a parameter times zero",
        _plugin(HiddenParameter),
        _GRADIENT,
        "The gradient of embedding.scale is zero. Check what blocks it.",
    ),
    Fault(
        "detached",
        _plugin(Detached),
        _GRADIENT,
        "does not require grad",
    ),
    Fault(
        "dropout in evaluation",
        _plugin(DropoutAlwaysOn),
        _SEED,
        "In evaluation mode its outputs for the same images differ.",
    ),
    Fault(
        "weights drawn by numpy",
        _plugin(NumpyWeights),
        _SEED,
        "Built twice from one seed, its outputs differ.",
    ),
    Fault(
        "constant weights",
        _plugin(ConstantWeights),
        _SEED,
        "Another seed gives the same weights.",
    ),
    Fault(
        "the batch's mean",
        _plugin(BatchMean),
        "images_do_not_see_each_other",
        "An image's output depends on the other images.",
    ),
    Fault(
        "changes its input",
        _plugin(ChangesInPlace),
        "leaves_the_images_alone",
        "It modifies its input. Work on a copy.",
    ),
    Fault(
        "state outside parameters and buffers",
        _plugin(HiddenState),
        "weights_survive_a_file",
        "Keep all state in parameters and buffers.",
    ),
    Fault(
        "tokens of almost nothing",
        _plugin(AlmostNothing),
        _LEARNS,
        "After 300 steps on one batch of 8 images the loss is 1.",
    ),
    Fault(
        "values that cancel",
        _plugin(Cancelling),
        "runs_in_bfloat16",
        "Compute the sensitive parts in float32.",
    ),
    Fault(
        "a divisor that is rounded to zero",
        _plugin(DividesByRounding),
        "runs_in_bfloat16",
        "Under autocast it returns inf or nan.",
    ),
    Fault(
        "a branch on values",
        _plugin(BranchesOnValues),
        "exports_to_onnx",
        "The model cannot be exported to ONNX",
    ),
    Fault(
        "other answers when compiled",
        _plugin(DifferentWhenCompiled),
        "compiles",
        "Compiled, its outputs differ. The difference is",
    ),
    Fault(
        "other answers when exported",
        _plugin(DifferentWhenExported),
        "exports_to_onnx",
        "The ONNX outputs differ. The difference is",
    ),
    Fault(
        "an operation that ONNX has not",
        _plugin(UnknownToOnnx),
        "exports_to_onnx",
        "The model cannot be exported to ONNX",
    ),
]
