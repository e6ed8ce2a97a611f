"""A plain ViT: averaged tokens, fixed sine-cosine positions, no class token and no dropout.

Settings and plugin; the network is in `patchline.plugins.models.simple_vit_module`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from patchline.plugin_api import DataTraits, ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import TransformerConfig, check_sine_cosine

if TYPE_CHECKING:
    import torch


class SimpleVitConfig(TransformerConfig):
    """Size and regularisation."""

    size: Literal["micro", "mini", "ti", "s", "b", "l"] = "micro"
    """Dimensions: micro and mini for small images and few cores; s is the paper's."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the dimensions, and check that the positions fit them."""
        check_sine_cosine(self.dimensions().embed_dim)
        return super().resolved_for(traits)


def build(config: SimpleVitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.simple_vit_module import SimpleVisionTransformer

    return SimpleVisionTransformer(config, context)


plugin = ModelPlugin(
    summary="A plain ViT: averaged tokens, fixed sine-cosine positions, no class token",
    paper="arXiv 2205.01580",
    config_class=SimpleVitConfig,
    build=build,
)
