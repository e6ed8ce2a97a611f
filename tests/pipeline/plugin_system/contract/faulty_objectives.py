"""Faulty objectives, each for the check that finds it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchline.plugin_api import Objective, ObjectivePlugin, PluginConfig
from tests.pipeline.plugin_system.contract.faults import Fault


class NoSettings(PluginConfig):
    """There is nothing to set."""


class Shrinking(nn.Module):
    """A model with a scale of its own; the loss of an image is the size of its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.scale = model, nn.Parameter(torch.ones(()))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the losses of the images (B)."""
        losses_B: torch.Tensor = (self.scale * self.model(images_BCHW)).float().square().mean(dim=1)
        return losses_B


class Sound(Objective):
    """Shrink the outputs: the objective without fault."""

    def training_module(self, model: nn.Module) -> nn.Module:
        return Shrinking(model)

    def model_in(self, module: nn.Module) -> nn.Module:
        model = module.model
        assert isinstance(model, nn.Module)
        return model

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - there are no labels
        return outputs.float().mean()


def _plugin(objective: type[Objective], *, uses_labels: bool = False) -> ObjectivePlugin[Any]:
    return ObjectivePlugin(
        summary="For the tests",
        paper="",
        config_class=NoSettings,
        build=lambda *_: objective(),
        uses_labels=uses_labels,
    )


class ForEachImage(Sound):
    """Forgets to take the mean."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - there are no labels
        return outputs


class Rising(Sound):
    """Has gradients of the wrong sign."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return 2 * loss.detach() - loss


class Remembering(Sound):
    """Returns the model that it was built with, also for a copy."""

    def training_module(self, model: nn.Module) -> nn.Module:
        self.own = model
        return super().training_module(model)

    def model_in(self, module: nn.Module) -> nn.Module:  # noqa: ARG002 - the fault
        return self.own


class Frozen(Sound):
    """Trains only what it adds."""

    def training_module(self, model: nn.Module) -> nn.Module:
        return super().training_module(model.requires_grad_(False))


class _Centred(Shrinking):
    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        losses_B = super().forward(images_BCHW)
        return losses_B - losses_B.mean().detach() / 2


class Mixing(Sound):
    """Compares each image with the batch, also in evaluation mode."""

    def training_module(self, model: nn.Module) -> nn.Module:
        return _Centred(model)


class _Editing(Shrinking):
    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return super().forward(images_BCHW.mul_(0.5))


class Editing(Sound):
    """Changes the images that it is given."""

    def training_module(self, model: nn.Module) -> nn.Module:
        return _Editing(model)


class Wide(Sound):
    """Draws pictures of another shape."""

    def pictures(self, module: nn.Module, images_BCHW: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: ARG002 - they are not needed
        return {"Twice": images_BCHW.repeat(1, 1, 1, 2)}


SOUND = _plugin(Sound)
FAULTS = [
    Fault(
        "a loss for each image",
        _plugin(ForEachImage),
        "loss_is_a_number",
        "The loss is a tensor of shape (8,)",
    ),
    Fault("the wrong sign", _plugin(Rising), "learns", "Check its sign and its gradients."),
    Fault(
        "the first model for every module",
        _plugin(Remembering),
        "gives_the_model_back",
        "does not return the copied model.",
    ),
    Fault(
        "a frozen model",
        _plugin(Frozen),
        "the_model_gets_gradients",
        "gets no gradient. Check what blocks it.",
    ),
    Fault(
        "images that see each other",
        _plugin(Mixing),
        "images_do_not_see_each_other",
        "An image's output depends on the other images.",
    ),
    Fault(
        "edited images",
        _plugin(Editing),
        "leaves_the_images_alone",
        "It modifies its input.",
    ),
    Fault(
        "pictures of another shape",
        _plugin(Wide),
        "draws_every_image",
        "have the shape (8, 3, 32, 64) instead of (8, 3, 32, 32).",
    ),
    Fault(
        "labels without logits",
        _plugin(Sound, uses_labels=True),
        "loss_is_a_number",
        "Return logits.",
    ),
]
