"""Build a model from the names and settings of its plugins."""

from __future__ import annotations

import torch
from torch import nn

from pipeline import plugin_loader
from pipeline.config import ModelChoice
from pipeline.errors import PluginError
from pipeline.plugin_api import ImageSpec, ModelContext, PatchEmbeddingContext
from pipeline.plugin_settings import settings_of


def build_model(choice: ModelChoice, image: ImageSpec, num_classes: int) -> nn.Module:
    """Build the model, its patch embedding included, with random weights from torch's generator.

    Raises:
        PluginError: if a plugin fails to build, or builds something that is not a module.
    """

    def patch_embedding(embed_dim: int) -> nn.Module:
        embedding = choice.patch_embedding
        settings = settings_of("patch_embedding", embedding, "model.patch_embedding")
        context = PatchEmbeddingContext(image.channels, image.height, image.width, embed_dim)
        plugin = plugin_loader.load_patch_embedding(embedding.name)
        built = plugin.build(settings, context)
        return _checked(built, f"patch_embedding plugin '{embedding.name}'")

    settings = settings_of("model", choice, "model")
    plugin = plugin_loader.load_model(choice.name)
    model = plugin.build(settings, ModelContext(image, num_classes, patch_embedding))
    return _checked(model, f"model plugin '{choice.name}'")


def build_on_meta(choice: ModelChoice, image: ImageSpec, num_classes: int) -> nn.Module:
    """Build the model without memory for its weights, to count what it would take."""
    with torch.device("meta"):
        return build_model(choice, image, num_classes)


def _checked(built: object, what: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise PluginError(
            f"The {what} built a {type(built).__name__}, not a torch.nn.Module. Repair its build."
        )
    return built
