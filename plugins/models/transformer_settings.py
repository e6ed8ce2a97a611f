"""Settings shared by all built-in Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from patchline.plugin_api import ConfigError, DataTraits, PluginConfig


class Size(NamedTuple):
    """The four dimensions that define the size of a Transformer."""

    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int


VIT_SIZES = {
    "micro": Size(96, 4, 3, 192),  # ours: small images in minutes on two cores
    "mini": Size(128, 6, 4, 256),  # ours
    "ti": Size(192, 12, 3, 768),  # arXiv 2012.12877, table 1
    "s": Size(384, 12, 6, 1536),  # the same
    "b": Size(768, 12, 12, 3072),  # arXiv 2010.11929, table 1
    "l": Size(1024, 24, 16, 4096),  # the same
    "h": Size(1280, 32, 16, 5120),  # the same
}

Dimension = Annotated[int, Field(ge=1, le=65_536)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class TransformerConfig(PluginConfig):
    """Size and regularisation; a model's own config class adds its `size` and its choices."""

    sizes: ClassVar[Mapping[str, Size]] = VIT_SIZES
    """The dimensions of each size."""

    size: str
    """Named size, which sets the dimensions below."""

    embed_dim: Dimension | None = None
    """Embedding dimension D of a token; by default set by model.size."""

    depth: Annotated[int, Field(ge=1, le=256)] | None = None
    """Number of encoder blocks; by default set by model.size."""

    num_heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Attention heads in each block, a divisor of embed_dim; by default set by model.size."""

    mlp_dim: Dimension | None = None
    """Hidden dimension of the MLP in each block; by default set by model.size."""

    dropout: Probability = 0.0
    """Dropout of the embedded tokens and after each linear layer of a block."""

    attention_dropout: Probability = 0.0
    """Dropout of the attention weights."""

    stochastic_depth: Annotated[Probability, Field(json_schema_extra={"sweep": "0..0.2"})] = 0.0
    """Probability of skipping a residual branch in the last block, increasing linearly from 0."""

    patch_dropout: Probability = 0.0
    """Fraction of the patches that is dropped in training (arXiv 2208.07220)."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Fill in the dimensions of the size, and check that heads and positions fit them."""
        size = self.dimensions()
        # not every Transformer has a choice of positions
        if getattr(self, "positions", "") == "sine_cosine" and size.embed_dim % 4:
            raise ConfigError(
                f"model.embed_dim {size.embed_dim} is not a multiple of 4, which sine-cosine "
                f"positions need. Choose {size.embed_dim // 4 * 4 + 4}."
            )
        if size.embed_dim % size.num_heads:
            raise ConfigError(
                f"model.num_heads {size.num_heads} does not divide model.embed_dim "
                f"{size.embed_dim}. Choose a divisor, or change model.embed_dim."
            )
        return self.model_copy(update=size._asdict())

    def dimensions(self) -> Size:
        """Return the dimensions of the size, with what was set separately."""
        size = self.sizes[self.size]
        return Size(
            embed_dim=self.embed_dim or size.embed_dim,
            depth=self.depth or size.depth,
            num_heads=self.num_heads or size.num_heads,
            mlp_dim=self.mlp_dim or size.mlp_dim,
        )


class BlockConfig(TransformerConfig):
    """Size and regularisation, and the parts of an encoder block."""

    layer_scale: Annotated[float, Field(gt=0, le=1)] | None = None
    """Initial gain of each residual branch (arXiv 2103.17239), such as 1e-5; null for none."""

    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Normalisation before each branch and before the head: layer_norm (as published), or rms_norm
    (arXiv 1910.07467)."""

    norm_epsilon: Annotated[float, Field(gt=0, le=0.01)] = 1e-6
    """Added to the variance by the norms, except those of qk_norm: 1e-6 (as published); CLIP uses
    1e-5."""

    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    """Activation of the MLP: gelu (as published), or its approximations gelu_tanh and quick_gelu
    (arXiv 1606.08415, section 2); CLIP uses quick_gelu."""

    qk_norm: bool = False
    """Normalise queries and keys before their product (arXiv 2302.05442)."""

    residual_init: Literal["xavier", "zero"] = "xavier"
    """Initial weights of the last layer of each residual branch: xavier (as published), or zero, so
    that each block starts as the identity."""
