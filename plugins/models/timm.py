"""Any classification model of timm by its name, from random weights; needs timm."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Self

from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    ConfigError,
    DataTraits,
    ModelContext,
    ModelPlugin,
    PluginConfig,
    PluginError,
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
        from patchline.plugins.models.library_models import check_by_trial

        timm = _timm()
        name = self.architecture
        if not timm.is_model(name):
            close = difflib.get_close_matches(name, timm.list_models(), n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "Try vit_tiny_patch16_224."
            raise ConfigError(
                f"model.architecture is {name!r}, but timm {timm.__version__} has no model of that "
                f"name. {hint}"
            )
        shape_CHW = (traits.channels, traits.height, traits.width)
        check_by_trial(
            lambda: _network(self, shape_CHW, traits.num_classes), f"timm's {name}", shape_CHW
        )
        return self


def build(config: TimmConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.library_models import LibraryModel

    image = context.image
    shape_CHW = (image.channels, image.height, image.width)
    return LibraryModel(_network(config, shape_CHW, context.num_classes))


def _network(
    config: TimmConfig, shape_CHW: tuple[int, int, int], num_classes: int
) -> torch.nn.Module:
    timm = _timm()
    channels, height, width = shape_CHW
    arguments: dict[str, Any] = {"in_chans": channels, "num_classes": num_classes}
    # None is left out by timm; not every model knows a drop_path_rate.
    arguments |= {"drop_rate": config.dropout, "drop_path_rate": config.stochastic_depth or None}
    pretrained = timm.models.get_pretrained_cfg(config.architecture)
    if pretrained is not None and pretrained.fixed_input_size:
        arguments["img_size"] = (height, width)
    network: torch.nn.Module = timm.create_model(config.architecture, pretrained=False, **arguments)
    return network


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise PluginError(
            "The model plugin 'timm' needs the package timm, which is not installed. Install it "
            "with: pip install 'patchline[timm]'"
        ) from error
    return timm


plugin = ModelPlugin(
    summary="Any classification model of timm by its name, from random weights",
    paper="",
    config_class=TimmConfig,
    build=build,
    patch_embedding=NO_PATCH_EMBEDDING,
)
