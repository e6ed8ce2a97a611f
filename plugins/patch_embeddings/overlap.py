"""Overlapping patches: a convolution with a kernel larger than its stride."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field

from patchline.plugin_api import (
    ConfigError,
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PluginConfig,
)
from patchline.plugins.patch_embeddings.patch_grid import default_patch_size, nearest_patch_size

if TYPE_CHECKING:
    import torch


class Window(NamedTuple):
    """Kernel size and stride of the patches, in pixels."""

    patch_size: int
    kernel_size: int


class OverlapConfig(PluginConfig):
    """Stride and side of the overlapping patches."""

    patch_size: Annotated[int, Field(ge=1, le=512)] | None = None
    """Pixels from one token to the next, at most the image's shorter side. It need not divide the
    image: the last tokens then extend beyond its edge. By default about 8 tokens per side, at most
    16 pixels each, a divisor of the image if there is one."""

    kernel_size: Annotated[int, Field(ge=3, le=1023)] | None = None
    """Side of the area that a token sees, in pixels: an odd number larger than patch_size. By
    default 2 * patch_size - 1, as published, and at least 3."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose defaults, and check that the patches overlap."""
        return self.model_copy(update=self.window(traits.height, traits.width)._asdict())

    def window(self, height: int, width: int) -> Window:
        """Return both sizes for an image, or defaults if they are not set.

        Raises:
            ConfigError: if they do not fit the image or each other.
        """
        patch_size = self.patch_size or _default_stride(height, width)
        if patch_size > min(height, width):
            raise ConfigError(
                f"patch_size {patch_size} is larger than the {height}x{width} image. Choose at "
                f"most {min(height, width)}, or change data.image_size."
            )
        kernel_size = self.kernel_size or max(3, 2 * patch_size - 1)
        remedy = f"such as {max(3, 2 * patch_size - 1)}"
        if kernel_size % 2 == 0:
            raise ConfigError(
                f"kernel_size {kernel_size} is even. Choose an odd number larger than patch_size "
                f"{patch_size}, {remedy}."
            )
        if kernel_size <= patch_size:
            raise ConfigError(
                f"kernel_size {kernel_size} does not overlap with patch_size {patch_size}. Choose "
                f"an odd number larger than {patch_size}, {remedy}."
            )
        return Window(patch_size, kernel_size)


def build(config: OverlapConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer.

    The image is zero-padded by half a kernel, so the first token is centred on the first pixel, and
    the side of the grid is the image's side divided by the stride, rounded up.
    """
    from torch import nn

    from patchline.plugins.patch_embeddings.feature_map import (
        FeatureMapEmbedding,
        initialize_projection,
    )

    stride, kernel_size = config.window(context.height, context.width)
    projection = nn.Conv2d(
        context.channels, context.embed_dim, kernel_size, stride, padding=kernel_size // 2
    )
    return FeatureMapEmbedding(
        (-(-context.height // stride), -(-context.width // stride)),
        initialize_projection(projection),
        norm=nn.LayerNorm(context.embed_dim),
    )


def _default_stride(height: int, width: int) -> int:
    """Return the default patch size, or about 8 tokens per side for an image without a divisor."""
    dividing = default_patch_size(height, width)
    any_size = range(1, min(height, width) + 1)
    return dividing if dividing > 1 else nearest_patch_size(any_size, height, width)


plugin = PatchEmbeddingPlugin(
    summary="Overlapping patches: a convolution with a kernel larger than its stride",
    paper="arXiv 2106.13797, section 3.2",
    config_class=OverlapConfig,
    build=build,
)
