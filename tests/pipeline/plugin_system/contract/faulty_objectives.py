"""Faulty objectives, each with its check and a part of what the check says."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchline.plugin_api import Objective, ObjectivePlugin, PluginConfig


class Shrinking(nn.Module):
    """A model with a scale of its own; the loss of an image is the size of its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.scale = model, nn.Parameter(torch.ones(()))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the losses of the images (B)."""
        losses_B: torch.Tensor = (self.scale * self.model(images_BCHW)).float().square().mean(dim=1)
        return losses_B


class Shrink(Objective):
    """Shrink the outputs: there are no labels."""

    kind: type[nn.Module] = Shrinking

    def training_module(self, model: nn.Module) -> nn.Module:
        self.own = model
        return self.kind(model)

    def model_in(self, module: nn.Module) -> Any:
        return module.model

    def loss(self, outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return outputs.float().mean()


class ForEachImage(Shrink):
    def loss(self, outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return outputs


class Rising(Shrink):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return 2 * loss.detach() - loss


class Remembering(Shrink):
    def model_in(self, _module: nn.Module) -> nn.Module:
        return self.own


class Frozen(Shrink):
    def training_module(self, model: nn.Module) -> nn.Module:
        return super().training_module(model.requires_grad_(False))


class Centred(Shrinking):
    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        losses_B = super().forward(images_BCHW)
        return losses_B - losses_B.mean().detach() / 2


class Edited(Shrinking):
    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return super().forward(images_BCHW.mul_(0.5))


class Mixing(Shrink):
    kind = Centred


class Editing(Shrink):
    kind = Edited


class Wide(Shrink):
    def pictures(self, _module: nn.Module, images_BCHW: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"Twice": images_BCHW.repeat(1, 1, 1, 2)}


def _plugin(objective: type[Any], *, uses_labels: bool = False) -> Any:
    return ObjectivePlugin(
        "For the tests", "", PluginConfig, lambda *_: objective(), uses_labels=uses_labels
    )


FAULTS = {
    "no objective": (_plugin(dict), "loss_is_a_number", "returned a dict, not an Objective."),
    "a loss for each image": (_plugin(ForEachImage), "loss_is_a_number", "of shape (8,)"),
    "labels without logits": (
        _plugin(Shrink, uses_labels=True), "loss_is_a_number", "Return logits."
    ),
    "the wrong sign": (_plugin(Rising), "learns", "Check its sign and its gradients."),
    "the first model for every module": (
        _plugin(Remembering), "gives_the_model_back", "not return the copied model."
    ),
    "a frozen model": (_plugin(Frozen), "the_model_gets_gradients", "gets no gradient."),
    "images that see each other": (
        _plugin(Mixing), "images_do_not_see_each_other", "depends on the other images."
    ),
    "edited images": (_plugin(Editing), "leaves_the_images_alone", "It modifies its input."),
    "pictures of another shape": (_plugin(Wide), "draws_every_image", "instead of (8, 3, 32, 32)"),
}  # fmt: skip
