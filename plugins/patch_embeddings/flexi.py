"""One stored kernel, resized to any patch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field

from patchline.plugin_api import DataTraits, PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import (
    PatchGridConfig,
    check_divides,
    default_patch_size,
)

if TYPE_CHECKING:
    import torch

_STORED_SIZE = 32
PatchSize = Annotated[int, Field(ge=1, le=512)]


class FlexiSizes(NamedTuple):
    """Every size in pixels; without random sizes, `patch_sizes` is empty."""

    patch_size: int
    patch_sizes: tuple[int, ...]
    kernel_size: int


class FlexiConfig(PatchGridConfig):
    """Patch sizes in training and after, and the size of the stored kernel."""

    patch_size: PatchSize | None = None
    """Side of a patch in pixels, in evaluation and export; must divide the image. By default about
    8 patches per side, at most 16 pixels each; with patch_sizes, the one nearest to that."""

    patch_sizes: Annotated[tuple[PatchSize, ...], Field(min_length=1)] | None = None
    """Train with a random one of these at each step, in pixels; each must divide the image. By
    default train with patch_size alone."""

    kernel_size: PatchSize | None = None
    """Side of the stored kernel in pixels. By default 32, or the largest patch if that is more."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose default sizes, and check that each divides the image."""
        sizes = self.sizes(traits.height, traits.width)
        chosen = {"patch_size": sizes.patch_size, "kernel_size": sizes.kernel_size}
        return self.model_copy(update=chosen)

    def patch_size_for(self, height: int, width: int) -> int:
        """Return the patch size in evaluation, or a default if it is not set.

        Raises:
            ConfigError: if it or one of the random sizes does not divide the image.
        """
        for patch_size in self.patch_sizes or ():
            check_divides(f"The {patch_size} in patch_sizes", patch_size, height, width)
        if self.patch_size is None and self.patch_sizes:
            wanted = default_patch_size(height, width)
            return min(self.patch_sizes, key=lambda p: (abs(p - wanted), p))
        return super().patch_size_for(height, width)

    def sizes(self, height: int, width: int) -> FlexiSizes:
        """Return all sizes for an image, or defaults if they are not set.

        Raises:
            ConfigError: if one does not divide the image.
        """
        patch_size, patch_sizes = self.patch_size_for(height, width), self.patch_sizes or ()
        kernel_size = self.kernel_size or max(_STORED_SIZE, patch_size, *patch_sizes)
        return FlexiSizes(patch_size, patch_sizes, kernel_size)


def build(config: FlexiConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from patchline.plugins.patch_embeddings.flexi_module import FlexiPatchEmbedding

    return FlexiPatchEmbedding(*config.sizes(context.height, context.width), context)


plugin = PatchEmbeddingPlugin(
    summary="One stored kernel, resized to any patch size",
    paper="arXiv 2212.08013, sections 3.1 and 3.4",
    config_class=FlexiConfig,
    build=build,
)
