"""Cut patches from the image and four copies shifted by half a patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from patchline.plugin_api import ConfigError, PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig, nearby_even_size

if TYPE_CHECKING:
    import torch


class ShiftedConfig(PatchGridConfig):
    """The side of the patches."""

    patch_size: Annotated[int, Field(ge=2, le=512)] | None = None
    """Side of a patch in pixels; must divide the image. By default about 8 patches per side, at
    most 16 pixels each."""

    def patch_size_for(self, height: int, width: int) -> int:
        """Return the patch size for an image, or a default if it is not set.

        Raises:
            ConfigError: if it does not fit the image.
        """
        patch_size = super().patch_size_for(height, width)
        if patch_size == 1:
            raise ConfigError(
                f"No patch_size from 2 to 16 divides the {height}x{width} image, and a patch of 1 "
                "pixel has no half to shift by. Set data.image_size to an even number, such as "
                f"{nearby_even_size(height, width)}."
            )
        return patch_size


def build(config: ShiftedConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from patchline.plugins.patch_embeddings.flattened_patches import FlattenedPatches

    patch_size = config.patch_size_for(context.height, context.width)
    return FlattenedPatches(patch_size, context, shifted=True)


plugin = PatchEmbeddingPlugin(
    summary="Cut patches from the image and four copies shifted by half a patch",
    paper="arXiv 2112.13492, section 3.1",
    config_class=ShiftedConfig,
    build=build,
)
