"""Conformance checks of a model: `images_BCHW -> logits_BK`.

Shapes: B batch, C channels, H height, W width, D embedding, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchline.pipeline.plugin_system.contract.checks import Rule, require
from patchline.pipeline.plugin_system.contract.module_checks import (
    NUM_CLASSES,
    ImageShape,
    ModuleChecks,
)
from patchline.pipeline.plugin_system.plugin_loader import load_patch_embedding
from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    ImageSpec,
    ModelContext,
    ModelPlugin,
    PatchEmbeddingContext,
    PluginConfig,
)


class ModelChecks(ModuleChecks):
    """Conformance checks of a model with the given settings and its default patch embedding."""

    def __init__(self, plugin: ModelPlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings
        self.embeddings_built = 0

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        own = [
            ("returns_logits", self.returns_logits),
            ("takes_any_number_of_classes", self.takes_any_number_of_classes),
        ]
        return [*own, *super().rules()]

    def build(self, shape: ImageShape) -> nn.Module:
        """Build the model for five classes."""
        return self._model(shape, NUM_CLASSES)

    def learner(self, shape: ImageShape) -> nn.Module:
        """Build the model itself."""
        return self.build(shape)

    @torch.no_grad()
    def returns_logits(self) -> None:
        """It returns float32 logits (B, K) for colour and greyscale images."""
        for channels in (3, 1):
            shape = self.usual_shape(channels)
            self.embeddings_built = 0
            logits = self.built(shape)(shape.images(2))
            require(
                self.embeddings_built or self.plugin.patch_embedding == NO_PATCH_EMBEDDING,
                "It never builds its patch embedding. Call context.patch_embedding(embed_dim), or "
                "declare that it takes none: patch_embedding=NO_PATCH_EMBEDDING.",
            )
            require(
                isinstance(logits, torch.Tensor),
                f"It returns {type(logits).__name__}. Return the logits as one tensor.",
            )
            require(
                tuple(logits.shape) == (2, NUM_CLASSES),
                f"Its logits have the shape {tuple(logits.shape)}. For 2 images and {NUM_CLASSES} "
                f"classes, (2, {NUM_CLASSES}) is expected.",
            )
            require(logits.dtype == torch.float32, f"Its logits are {logits.dtype}. Keep float32.")

    @torch.no_grad()
    def takes_any_number_of_classes(self) -> None:
        """The number of logits equals the number of classes."""
        shape = self.usual_shape()
        for num_classes in (2, 11):
            logits = self._model(shape, num_classes).eval()(shape.images(2))
            require(
                logits.shape[-1] == num_classes,
                f"For {num_classes} classes it returns {logits.shape[-1]} logits. Use "
                "context.num_classes.",
            )

    def _model(self, shape: ImageShape, num_classes: int) -> nn.Module:
        settings = self.settings.resolved_for(shape.traits)
        model = self.plugin.build(settings, self._context(shape, num_classes))
        require(
            isinstance(model, nn.Module),
            f"It builds a {type(model).__name__}. Build a torch.nn.Module.",
        )
        return model

    def _context(self, shape: ImageShape, num_classes: int) -> ModelContext:
        half = (0.5,) * shape.channels
        image = ImageSpec.model_validate(
            {**shape._asdict(), "mean": half, "std": half, "resize": "crop"}
        )

        def patch_embedding(embed_dim: int) -> nn.Module:
            require(
                self.plugin.patch_embedding != NO_PATCH_EMBEDDING,
                "It builds a patch embedding, but declares that it takes none "
                "(patch_embedding=NO_PATCH_EMBEDDING). Set patch_embedding to the one it uses.",
            )
            self.embeddings_built += 1
            plugin = load_patch_embedding(self.plugin.patch_embedding)
            settings = plugin.config_class().resolved_for(shape.traits)
            return plugin.build(settings, PatchEmbeddingContext(*shape, embed_dim=embed_dim))

        return ModelContext(image, num_classes, patch_embedding)
