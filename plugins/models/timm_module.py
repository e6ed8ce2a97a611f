"""Models of timm as model plugins; timm is imported only when one is built.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.plugin_api import ConfigError, DataTraits, ModelContext, PluginError
from patchline.plugins.models.trial_build import check_by_trial

if TYPE_CHECKING:
    from patchline.plugins.models.timm import TimmConfig


class TimmModel(nn.Module):
    """One model of timm: `images_BCHW -> logits_BK`."""

    def __init__(self, config: TimmConfig, context: ModelContext) -> None:
        super().__init__()
        image = context.image
        shape_CHW = (image.channels, image.height, image.width)
        self.network = _network(config, shape_CHW, context.num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        logits_BK: torch.Tensor = self.network(images_BCHW)
        return logits_BK


def check(config: TimmConfig, traits: DataTraits) -> None:
    """Check that the model exists and takes images of this size.

    Raises:
        PluginError: if timm is not installed.
        ConfigError: if there is no such model, or it does not take the images.
    """
    timm = _timm()
    name = config.architecture
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else "Try vit_tiny_patch16_224."
        raise ConfigError(
            f"model.architecture is {name!r}, but timm {timm.__version__} has no model of that "
            f"name. {hint}"
        )
    shape_CHW = (traits.channels, traits.height, traits.width)
    check_by_trial(
        lambda: _network(config, shape_CHW, traits.num_classes), f"timm's {name}", shape_CHW
    )


def _network(config: TimmConfig, shape_CHW: tuple[int, int, int], num_classes: int) -> nn.Module:
    timm = _timm()
    channels, height, width = shape_CHW
    wanted: dict[str, Any] = {"in_chans": channels, "num_classes": num_classes}
    # None is left out by timm; not every model knows a drop_path_rate.
    wanted |= {"drop_rate": config.dropout, "drop_path_rate": config.stochastic_depth or None}
    known = timm.models.get_pretrained_cfg(config.architecture)
    if known is not None and known.fixed_input_size:
        wanted["img_size"] = (height, width)
    network: nn.Module = timm.create_model(config.architecture, pretrained=False, **wanted)
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
