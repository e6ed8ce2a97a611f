"""Objectives: what training minimises.

Shapes: B batch, C channels, H height, W width, K classes, V views of an image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from patchline.pipeline.plugin_kinds.plugin_config import API_VERSION, C, ImageSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ObjectiveContext:
    """Input format, number of classes and classification loss for building an objective."""

    image: ImageSpec
    num_classes: int
    """K; 0 for an objective that uses no labels."""
    classification_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The loss that `training.loss`, `training.label_smoothing` and `training.class_weights` set:
    logits (B, K) and targets to the mean loss of the images."""


class Objective(ABC):
    """What training minimises: a module that it trains, and the loss of the module's outputs.

    By default, the model itself is trained. All random numbers of a step must come from torch's
    global generator, which is seeded before each step.
    """

    def training_module(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the module to train: the model, or one that contains it as a submodule.

        The module maps normalised images (B, C, H, W) to outputs whose first dimension is B;
        outputs of shape (B,) are taken as the losses of the images. In evaluation mode, the outputs
        of an image must not depend on chance or on the other images. Raise `ConfigError` for a
        model that cannot be trained in this way.
        """
        return model

    def model_in(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the model inside a module that `training_module` returned, or inside a copy."""
        return module

    @abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the images of a batch, in float32.

        Args:
            outputs: of the module.
            targets: class indices (B) or probabilities (B, K); without meaning for an objective
                that uses no labels.
        """

    def pictures(
        self,
        module: torch.nn.Module,  # noqa: ARG002 - for subclasses
        images_BCHW: torch.Tensor,  # noqa: ARG002 - for subclasses
    ) -> dict[str, torch.Tensor]:
        """Return pictures of what was learned, such as reconstructions of the images.

        Args:
            module: what was trained, in evaluation mode.
            images_BCHW: normalised test images.

        Returns:
            For each title, an image (B, C, H, W) for each image, normalised in the same way;
            nothing if there is nothing to see.
        """
        return {}


@dataclass(frozen=True)
class ObjectivePlugin(Generic[C]):
    """An objective: supervised classification, or pre-training without labels."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, ObjectiveContext], Objective]
    uses_labels: bool = True
    """Whether it needs classes, and its module's outputs are logits (B, K). Otherwise the run
    registers an encoder, from which classifiers can start (`model.init`)."""
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION
