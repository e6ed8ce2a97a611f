"""Any classification model of torchvision by its name, from random weights."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, Self

from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    ConfigError,
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
        from patchline.plugins.models.library_models import check_by_trial

        name, size = self.architecture, (traits.height, traits.width)
        if name not in names():
            close = difflib.get_close_matches(name, names(), n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "Try resnet18 or vit_b_16."
            raise ConfigError(
                f"model.architecture is {name!r}, but torchvision has no classification model of "
                f"that name. {hint}"
            )
        check_by_trial(
            lambda: _network(name, size, traits.num_classes), f"torchvision's {name}", (3, *size)
        )
        return self


def names() -> list[str]:
    """Return the names of torchvision's classification models."""
    import torchvision

    return sorted(torchvision.models.list_models(module=torchvision.models))


def build(config: TorchvisionConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.library_models import LibraryModel

    size = (context.image.height, context.image.width)
    network = _network(config.architecture, size, context.num_classes)
    return LibraryModel(network, repeat_grey=True)


def _network(architecture: str, size: tuple[int, int], num_classes: int) -> torch.nn.Module:
    import torchvision

    height, width = size
    arguments: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if architecture in ("googlenet", "inception_v3"):
        arguments |= {"aux_logits": False, "init_weights": False}
    elif architecture.startswith("vit_"):
        if height != width:
            raise ValueError("it takes square images only")
        arguments["image_size"] = height
    elif architecture.startswith("maxvit"):
        arguments["input_size"] = size
    builder = torchvision.models.get_model_builder(architecture)
    if not callable(builder) or "weights" not in inspect.signature(builder).parameters:
        raise ValueError("Patchline does not know how torchvision builds it")
    network: torch.nn.Module = builder(**arguments)
    return network


plugin = ModelPlugin(
    summary="Any classification model of torchvision by its name, from random weights",
    paper="",
    config_class=TorchvisionConfig,
    build=build,
    patch_embedding=NO_PATCH_EMBEDDING,
)
