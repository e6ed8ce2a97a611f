"""Any classification model of torchvision by its name, from random weights.

Settings and plugin; the models are found in `patchline.plugins.models.torchvision_module`.
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

if TYPE_CHECKING:
    import torch


class TorchvisionConfig(PluginConfig):
    """Which model."""

    architecture: str = "resnet18"
    """Name of a classification model of torchvision, such as resnet18 or convnext_tiny."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Check that there is such a model and that it takes the images."""
        from patchline.plugins.models.torchvision_module import check

        check(self.architecture, traits)
        return self


def build(config: TorchvisionConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.torchvision_module import TorchvisionModel

    return TorchvisionModel(config.architecture, context)


plugin = ModelPlugin(
    summary="Any classification model of torchvision by its name, from random weights",
    paper="",
    config_class=TorchvisionConfig,
    build=build,
    patch_embedding=NO_PATCH_EMBEDDING,
)
