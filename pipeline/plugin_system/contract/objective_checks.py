"""Conformance checks of an objective: it trains a model, repeatably, and gives it back.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.plugin_system.contract.checks import Check, CheckedPlugin, checks, require
from patchline.pipeline.plugin_system.contract.module_checks import (
    NUM_CLASSES,
    ImageShape,
    ModuleSubject,
    images_do_not_see_each_other,
    leaves_the_images_alone,
    runs_in_bfloat16,
    same_seed_same_output,
)
from patchline.plugin_api import ConfigError, Objective, ObjectiveContext

_BATCH, _STEPS = 8, 10
_MODEL = ModelChoice.model_validate(
    {
        "name": "vit",
        "embed_dim": 48,
        "depth": 2,
        "num_heads": 3,
        "mlp_dim": 96,
        "patch_embedding": {"name": "conv", "patch_size": 8},
    }
)


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of an objective with the given settings, on a small ViT."""
    losses, outputs = (kind(subject.plugin, subject.settings) for kind in (_Losses, _Outputs))
    return [
        *checks(
            losses,
            loss_is_a_number,
            gives_the_model_back,
            the_model_gets_gradients,
            same_seed_same_output,
            learns,
            runs_in_bfloat16,
            draws_every_image,
        ),
        *checks(outputs, images_do_not_see_each_other, leaves_the_images_alone),
    ]


class _Losses(ModuleSubject):
    """The loss of a batch is what the checked module returns."""

    def build(self, shape: ImageShape) -> nn.Module:
        classes = NUM_CLASSES if self.plugin.uses_labels else 0
        context = ObjectiveContext(shape.image, classes, nn.functional.cross_entropy)
        objective = self.plugin.build(self.settings.resolved_for(shape.traits), context)
        if not isinstance(objective, Objective):
            raise ConfigError(
                f"build returned a {type(objective).__name__}, not an Objective. Derive its class "
                "from patchline.plugin_api.Objective."
            )
        return _Loss(objective, build_model(_MODEL, shape.image, classes))


class _Outputs(_Losses):
    """The checked module is the one that the objective trains."""

    def build(self, shape: ImageShape) -> nn.Module:
        trained: Any = super().build(shape)
        module: nn.Module = trained.module
        return module


class _Loss(nn.Module):
    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.objective, self.model = objective, model
        self.module = objective.training_module(model)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        outputs = self.module(images_BCHW)
        with torch.autocast("cpu", enabled=False):  # as in training
            return self.objective.loss(outputs, torch.arange(len(images_BCHW)) % NUM_CLASSES)


def loss_is_a_number(subject: _Losses) -> None:
    """The loss of a batch is one finite float32 number; labelled objectives return logits."""
    trained: Any = subject.built()
    if subject.plugin.uses_labels:
        shape = tuple(trained.module(_images()).shape)
        require(
            shape == (_BATCH, NUM_CLASSES),
            f"It uses labels, but its outputs have the shape {shape} instead of "
            f"{(_BATCH, NUM_CLASSES)}. Return logits.",
        )
    loss = trained(_images())
    require(
        loss.ndim == 0 and loss.dtype == torch.float32 and bool(loss.isfinite()),
        f"The loss is a tensor of shape {tuple(loss.shape)} in {loss.dtype}: {loss}. Return "
        "one finite float32 number.",
    )


def gives_the_model_back(subject: _Losses) -> None:
    """`model_in` finds the model in the trained module, and in a copy of it."""
    trained: Any = subject.built()
    model_in = trained.objective.model_in
    require(model_in(trained.module) is trained.model, "model_in does not return the model.")
    copied = copy.deepcopy(trained.module)
    inner = model_in(copied)
    require(
        inner is not trained.model and any(each is inner for each in copied.modules()),
        "In a copy of the trained module, model_in does not return the copied model. Find the "
        "model in the module that it is given.",
    )


def the_model_gets_gradients(subject: _Losses) -> None:
    """The encoder blocks of the model learn, and all of what is trained beside it."""
    trained: Any = subject.built()
    trained.train()(_images()).backward()
    model = trained.objective.model_in(trained.module)
    spared = set(model.parameters()) - set(model.blocks.parameters())
    for name, parameter in trained.module.named_parameters():
        require(
            parameter in spared or (parameter.grad is not None and (parameter.grad != 0).any()),
            f"The parameter {name} gets no gradient. Check what blocks it.",
        )


def learns(subject: _Losses) -> None:
    """After a few steps on one batch, its loss is smaller."""
    trained = subject.built()
    images = _images()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=2e-3, weight_decay=0.0)
    before = float(trained(images).detach())
    trained.train()
    for _ in range(_STEPS):
        loss = trained(images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = float(trained.eval()(images).detach())
    require(
        after < before,
        f"After {_STEPS} steps on one batch, the loss has changed from {before:.3g} to "
        f"{after:.3g}. Check its sign and its gradients.",
    )


@torch.no_grad()
def draws_every_image(subject: _Losses) -> None:
    """Its pictures, if there are any, have the shape of the images."""
    trained: Any = subject.built()
    images = _images()
    for title, views in trained.objective.pictures(trained.module, images).items():
        require(
            views.shape == images.shape,
            f"The pictures '{title}' have the shape {tuple(views.shape)} instead of "
            f"{tuple(images.shape)}.",
        )


def _images() -> torch.Tensor:
    noise = torch.rand(_BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 5, stride=1, padding=2) * 4 - 2
