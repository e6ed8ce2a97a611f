"""Classification of labelled images, as published: the loss of the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import Objective, ObjectiveContext, ObjectivePlugin, PluginConfig

if TYPE_CHECKING:
    import torch


class SupervisedConfig(PluginConfig):
    """No settings: those of the loss are `training.loss` and its neighbours."""


class SupervisedObjective(Objective):
    """Train the model itself (arXiv 2010.11929, section 3.1)."""

    def __init__(self, _config: SupervisedConfig, context: ObjectiveContext) -> None:
        self.context = context

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the logits."""
        return self.context.classification_loss(outputs, targets)


plugin = ObjectivePlugin(
    summary="Classification of labelled images, as published: the loss of the logits",
    paper="arXiv 2010.11929",
    config_class=SupervisedConfig,
    build=SupervisedObjective,
)
