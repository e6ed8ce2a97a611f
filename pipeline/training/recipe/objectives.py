"""Build the objective of a run, and save what it trained."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.models.model_description import WEIGHTS_FILE, ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.provenance import Provenance
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.pipeline.training.recipe.losses import set_loss, training_loss
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from patchline.plugin_api import ImageSpec, Objective, ObjectiveContext

REST_FILE = "objective.safetensors"
"""Beside the weights of a model: what was trained with it, such as a decoder."""


def build_objective(
    config: RunConfig,
    image: ImageSpec,
    num_classes: int,
    class_weights_K: torch.Tensor | None = None,
) -> Objective:
    """Build the objective that the config names.

    Args:
        config: the run's settings, resolved against the data.
        image: format of the images.
        num_classes: number of classes, K; 0 for an objective without labels.
        class_weights_K: weight of each class in the loss, of sets where a label is present; None
            for equal weights.

    Raises:
        PluginError: if the plugin fails to build.
    """
    settings = settings_of("objective", config.objective, "objective")
    training = config.training
    if training.teacher is not None:  # the labels in its targets are smoothed, and it is not
        training = training.model_copy(update={"label_smoothing": 0.0})
    loss = set_loss if config.data.task == MULTI_LABEL else training_loss

    def classification_loss(logits_BK: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(logits_BK, targets, training, class_weights_K)

    context = ObjectiveContext(image, num_classes, classification_loss)
    plugin = plugin_loader.load_objective(config.objective.name)
    with plugin_loader.plugin_errors("objective", config.objective.name, "failed to build"):
        return plugin.build(settings, context)


def save_trained(
    folder: Path,
    objective: Objective,
    module: nn.Module,
    description: ModelDescription,
    provenance: Provenance,
) -> None:
    """Save the model inside a module, and beside it the rest of the module if there is one.

    Args:
        folder: the folder that receives the files.
        objective: the objective that the module was trained with.
        module: the module that contains the model.
        description: the description that is saved with the model.
        provenance: the images that the weights have seen.
    """
    model = objective.model_in(module)
    rest = _rest(module, model)
    if rest:
        write_tensors(folder / REST_FILE, rest)
    save_model(folder, model, description, provenance)


def load_trained(folder: Path, objective: Objective, module: nn.Module) -> None:
    """Load into a module what `save_trained` saved.

    Raises:
        DamagedFileError: if the weights are not what was written.
    """
    model = objective.model_in(module)
    model.load_state_dict(read_tensors(folder / WEIGHTS_FILE)[0])
    rest = _rest(module, model)
    if rest:
        own, _ = read_tensors(folder / REST_FILE)
        for name, tensor in rest.items():
            tensor.copy_(own[name])


def _rest(module: nn.Module, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a module that are not the model's, by name."""
    inside = [name for name, each in module.named_modules() if each is model]
    prefix = f"{inside[0]}." if inside and inside[0] else ""
    return {
        name: tensor
        for name, tensor in module.state_dict().items()
        if prefix and not name.startswith(prefix)
    }
