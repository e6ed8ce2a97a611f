"""Any classification model of timm by its name, from random weights; needs timm.

Settings and plugin; the models are found in `patchline.plugins.models.timm_module`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    DataTraits,
    ModelContext,
    ModelPlugin,
    PluginConfig,
)
from patchline.plugins.models.transformer_settings import Probability

if TYPE_CHECKING:
    import torch


class TimmConfig(PluginConfig):
    """Which model, and its regularisation."""

    architecture: str = "vit_tiny_patch16_224"
    """Name of a model of timm, such as vit_tiny_patch16_224, convnext_tiny or resnet18."""

    dropout: Probability = 0.0
    """Dropout before the head, timm's drop_rate."""

    stochastic_depth: Probability = 0.0
    """Probability of skipping a residual branch, timm's drop_path_rate, where the model has it."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Check that timm is installed and has a model of that name that takes the images."""
        from patchline.plugins.models.timm_module import check

        check(self, traits)
        return self


def build(config: TimmConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.timm_module import TimmModel

    return TimmModel(config, context)


plugin = ModelPlugin(
    summary="Any classification model of timm by its name, from random weights",
    paper="",
    config_class=TimmConfig,
    build=build,
    patch_embedding=NO_PATCH_EMBEDDING,
)
