"""Build a model from the names and settings of its plugins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from patchline.pipeline.config import ModelChoice, PatchEmbeddingChoice
from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import name_patch_embedding, settings_of
from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    ImageSpec,
    ModelContext,
    PatchEmbeddingContext,
)


def build_model(choice: ModelChoice, image: ImageSpec, num_classes: int) -> nn.Module:
    """Build the model, its patch embedding included, with random weights from torch's generator.

    Args:
        choice: the model plugin, the patch embedding, and their settings.
        image: the format of the input.
        num_classes: K, the number of classes; 0 for an encoder, whose head has one output that is
            not used.

    Raises:
        PluginError: if a plugin fails to build, or builds something that is not a module.
    """
    embedding = name_patch_embedding(choice)

    def patch_embedding(embed_dim: int) -> nn.Module:
        if embedding.name == NO_PATCH_EMBEDDING:
            raise PluginError(
                f"The model plugin '{choice.name}' asks for a patch embedding, but says that it "
                "takes none. Repair its patch_embedding or its build."
            )
        return build_patch_embedding(embedding, image, embed_dim)

    settings = settings_of("model", choice, "model")
    plugin = plugin_loader.load_model(choice.name)
    context = ModelContext(image, max(1, num_classes), patch_embedding)
    return _build(lambda: plugin.build(settings, context), "model", choice.name)


def build_patch_embedding(
    choice: PatchEmbeddingChoice, image: ImageSpec, embed_dim: int
) -> nn.Module:
    """Build a patch embedding alone.

    Raises:
        PluginError: if the plugin fails to build, or builds something that is not a module.
    """
    settings = settings_of("patch_embedding", choice, "model.patch_embedding")
    context = PatchEmbeddingContext(image.channels, image.height, image.width, embed_dim)
    plugin = plugin_loader.load_patch_embedding(choice.name)
    embedding = _build(lambda: plugin.build(settings, context), "patch_embedding", choice.name)
    if not hasattr(embedding, "grid"):
        raise PluginError(
            f"{plugin_loader.origin_of('patch_embedding', choice.name)} has no attribute 'grid'. "
            "Set it to (rows, columns) when it is built."
        )
    return embedding


def build_on_meta(choice: ModelChoice, image: ImageSpec, num_classes: int) -> nn.Module:
    """Build the model without memory for its weights, to count what it would take."""
    with torch.device("meta"):
        return build_model(choice, image, num_classes)


def _build(build: Callable[[], object], kind: plugin_loader.Kind, name: str) -> nn.Module:
    with plugin_loader.plugin_errors(kind, name, "failed to build"):
        built = build()
    if not isinstance(built, nn.Module):
        raise PluginError(
            f"{plugin_loader.origin_of(kind, name)} built a {type(built).__name__}, not a "
            "torch.nn.Module. Repair its build."
        )
    return built
