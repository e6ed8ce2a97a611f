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
from patchline.pipeline.plugin_system.contract.checks import Rule, require
from patchline.pipeline.plugin_system.contract.module_checks import (
    NUM_CLASSES,
    TOLERANCE,
    require_gradients,
)
from patchline.plugin_api import (
    ConfigError,
    DataTraits,
    ImageSpec,
    Objective,
    ObjectiveContext,
    ObjectivePlugin,
    PluginConfig,
)

_SIDE, _CHANNELS, _BATCH = 32, 3, 8
_STEPS = 10
_BFLOAT16_TOLERANCE = 0.1
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
_IMAGE = ImageSpec(
    channels=_CHANNELS,
    height=_SIDE,
    width=_SIDE,
    mean=(0.5,) * _CHANNELS,
    std=(0.25,) * _CHANNELS,
    resize="crop",
)
_TRAITS = DataTraits(_CHANNELS, _SIDE, _SIDE, num_classes=NUM_CLASSES, mirror_symmetric=True)


class ObjectiveChecks:
    """Conformance checks of an objective with the given settings, on a small ViT."""

    def __init__(self, plugin: ObjectivePlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [
            ("loss_is_a_number", self.loss_is_a_number),
            ("gives_the_model_back", self.gives_the_model_back),
            ("the_model_gets_gradients", self.the_model_gets_gradients),
            ("same_seed_same_loss", self.same_seed_same_loss),
            ("images_do_not_see_each_other", self.images_do_not_see_each_other),
            ("leaves_the_images_alone", self.leaves_the_images_alone),
            ("learns", self.learns),
            ("runs_in_bfloat16", self.runs_in_bfloat16),
            ("draws_every_image", self.draws_every_image),
        ]

    def refuse_settings(self) -> None:
        """Raise the plugin's own `ConfigError` if its settings do not fit a small ViT."""
        self._built()

    def loss_is_a_number(self) -> None:
        """The loss of a batch is one finite float32 number; labelled objectives return logits."""
        objective, module = self._built()
        outputs = module(_images())
        if self.plugin.uses_labels:
            require(
                outputs.shape == (_BATCH, NUM_CLASSES),
                f"It uses labels, but its outputs have the shape {tuple(outputs.shape)} instead of "
                f"{(_BATCH, NUM_CLASSES)}. Return logits.",
            )
        loss = objective.loss(outputs, _targets())
        require(
            loss.ndim == 0 and loss.dtype == torch.float32 and bool(loss.isfinite()),
            f"The loss is a tensor of shape {tuple(loss.shape)} in {loss.dtype}: {loss}. Return "
            "one finite float32 number.",
        )

    def gives_the_model_back(self) -> None:
        """`model_in` finds the model in the trained module, and in a copy of it."""
        torch.manual_seed(0)
        objective, model = self._objective(), self._model()
        module = objective.training_module(model)
        require(objective.model_in(module) is model, "model_in does not return the model.")
        copied = copy.deepcopy(module)
        inner = objective.model_in(copied)
        require(
            inner is not model and any(each is inner for each in copied.modules()),
            "In a copy of the trained module, model_in does not return the copied model. Find the "
            "model in the module that it is given.",
        )

    def the_model_gets_gradients(self) -> None:
        """The encoder blocks of the model learn, and all of what is trained beside it."""
        objective, module = self._built()
        module.train()
        torch.manual_seed(1)
        objective.loss(module(_images()), _targets()).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        model = objective.model_in(module)
        blocks: Any = model.blocks
        require_gradients(blocks.named_parameters())
        inside = {id(parameter) for parameter in model.parameters()}
        beside = ((n, each) for n, each in module.named_parameters() if id(each) not in inside)
        require_gradients(beside)

    @torch.no_grad()
    def same_seed_same_loss(self) -> None:
        """In training, the loss depends only on the weights, the batch and torch's seed."""
        losses = []
        for _ in range(2):
            objective, module = self._built()
            module.train()
            for _ in range(2):
                torch.manual_seed(1)
                losses.append(float(objective.loss(module(_images()), _targets())))
        require(
            len(set(losses)) == 1,
            "The same seed gives different losses. Draw only from torch's generator.",
        )

    @torch.no_grad()
    def images_do_not_see_each_other(self) -> None:
        """In evaluation mode an image's outputs depend neither on chance nor on the batch."""
        _, module = self._built()
        images = _images()
        together = module.eval()(images)
        alone = torch.cat([module(image[None]) for image in images])
        difference = float((together - alone).abs().max())
        require(
            difference <= TOLERANCE,
            f"Alone and in a batch, the outputs of an image differ by {difference:.2g}. Draw "
            "nothing in evaluation mode, and treat every image by itself.",
        )

    @torch.no_grad()
    def leaves_the_images_alone(self) -> None:
        """The input images are not modified."""
        _, module = self._built()
        for training in (False, True):
            images = _images()
            module.train(training)(images)
            require(torch.equal(images, _images()), "It modifies its input. Work on a copy.")

    def learns(self) -> None:
        """After a few steps on one batch, its loss is smaller."""
        objective, module = self._built()
        optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.0)
        before = self._tested(objective, module)
        module.train()
        for _ in range(_STEPS):
            loss = objective.loss(module(_images()), _targets())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            optimizer.step()
        after = self._tested(objective, module)
        require(
            after < before,
            f"After {_STEPS} steps on one batch, the loss has changed from {before:.3g} to "
            f"{after:.3g}. Check its sign and its gradients.",
        )

    @torch.no_grad()
    def runs_in_bfloat16(self) -> None:
        """Under autocast the loss stays close to that in float32."""
        objective, module = self._built()
        expected = self._tested(objective, module)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(_images())
        loss = float(objective.loss(outputs, _targets()))
        require(
            abs(loss - expected) <= _BFLOAT16_TOLERANCE * abs(expected),
            f"Under autocast the loss is {loss:.3g} instead of {expected:.3g}. Compute the "
            "sensitive parts in float32.",
        )

    @torch.no_grad()
    def draws_every_image(self) -> None:
        """Its pictures, if there are any, have the shape of the images."""
        objective, module = self._built()
        images = _images()
        for title, views in objective.pictures(module.eval(), images).items():
            require(
                views.shape == images.shape,
                f"The pictures '{title}' have the shape {tuple(views.shape)} instead of "
                f"{tuple(images.shape)}.",
            )

    def _tested(self, objective: Objective, module: nn.Module) -> float:
        with torch.no_grad():
            return float(objective.loss(module.eval()(_images()), _targets()))

    def _built(self) -> tuple[Objective, nn.Module]:
        torch.manual_seed(0)
        objective = self._objective()
        return objective, objective.training_module(self._model()).eval()

    def _objective(self) -> Objective:
        classes = NUM_CLASSES if self.plugin.uses_labels else 0
        context = ObjectiveContext(_IMAGE, classes, nn.functional.cross_entropy)
        objective = self.plugin.build(self.settings.resolved_for(_TRAITS), context)
        if not isinstance(objective, Objective):
            raise ConfigError(
                f"build returned a {type(objective).__name__}, not an Objective. Derive its class "
                "from patchline.plugin_api.Objective."
            )
        return objective

    def _model(self) -> nn.Module:
        return build_model(_MODEL, _IMAGE, NUM_CLASSES if self.plugin.uses_labels else 0)


def _images() -> torch.Tensor:
    shape = (_BATCH, _CHANNELS, _SIDE, _SIDE)
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 5, stride=1, padding=2) * 4 - 2


def _targets() -> torch.Tensor:
    return torch.arange(_BATCH) % NUM_CLASSES
