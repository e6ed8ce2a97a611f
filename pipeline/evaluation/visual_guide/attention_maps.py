"""Where a model looked: one map over the image, of its attention or, without it, of its gradient.

Shapes: B batch, C channels, H height, W width, L layers, A attention heads, N tokens; h, w the
grid of patches, or of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.evaluation.visual_guide.attention_statistics import rollout
from patchline.pipeline.evaluation.visual_guide.attributions import cell_grid, gradient_maps
from patchline.pipeline.evaluation.visual_guide.covering_result import MapKind
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels, trace
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.layers.intermediate_values import recorded
from patchline.pipeline.models.model_description import ModelDescription

Array = np.ndarray[Any, Any]

_MOST_WEIGHTS = 20_000_000
"""Attention weights in memory at once, about."""


@dataclass(frozen=True)
class AttentionMaps:
    """For each image, how much each patch counted."""

    kind: MapKind
    """`attention` is the rollout (arXiv 2005.00928) of the token that is classified, or the mean
    over the patches; `gradient` is gradient times pixel, where it supports the predicted class."""
    maps_Bhw: Array
    """At least 0."""


@dataclass(frozen=True)
class _Inside:
    """The tokens of a model whose attention can be recorded."""

    grid: tuple[int, int]
    prefix_tokens: int
    has_class_token: bool
    weights: int
    """Attention weights of an image, in all layers."""


def attention_maps(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels]
) -> AttentionMaps:
    """Return where a model looked in some images, uint8 (H, W, C) as they enter the model.

    A model whose attention cannot be recorded gets maps of its gradient.
    """
    inside = _inside(model, description, images[0])
    if inside is None:
        return _of_gradient(model, description, images, None)
    together = max(1, _MOST_WEIGHTS // inside.weights)
    layers = []
    for start in range(0, len(images), together):
        inputs_BCHW = normalised(_batch(images[start : start + together]), description.image)
        with torch.inference_mode(), recorded(model) as values:
            model(inputs_BCHW)
        attention_LBANN = np.stack(
            [block.attention.weights_BHNN.numpy() for block in values.blocks]
        )
        layers += [
            _patch_shares(attention_LBANN[:, place], inside) for place in range(len(inputs_BCHW))
        ]
    return AttentionMaps("attention", np.stack(layers))


def label_maps(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels], labels_B: Array
) -> AttentionMaps:
    """Return which parts of some images support one label of each, by the gradient.

    Attention is the same for all labels of an image, so that it explains none of them.
    """
    return _of_gradient(model, description, images, labels_B)


def _of_gradient(
    model: nn.Module,
    description: ModelDescription,
    images: Sequence[Pixels],
    labels_B: Array | None,
) -> AttentionMaps:
    grid = cell_grid(images[0].shape[:2])
    maps = [
        gradient_maps(
            model,
            normalised(_batch([image]), description.image),
            None if labels_B is None else torch.from_numpy(labels_B[place : place + 1]),
            grid,
            is_multi_label=description.is_multi_label,
        )
        for place, image in enumerate(images)
    ]
    return AttentionMaps("gradient", np.maximum(np.concatenate(maps), 0))


def _inside(model: nn.Module, description: ModelDescription, image: Pixels) -> _Inside | None:
    transformer = trace(model, description, image).transformer
    if transformer is None:
        return None
    return _Inside(
        transformer.grid,
        len(transformer.prefix),
        "class token" in transformer.prefix,
        transformer.attention().size,
    )


def _batch(images: Sequence[Pixels]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images))


def _patch_shares(attention_LANN: Array, inside: _Inside) -> Array:
    """Return the share of each patch in the token that is classified."""
    rollout_NN = rollout(attention_LANN)
    first = inside.prefix_tokens
    row_N = rollout_NN[0] if inside.has_class_token else rollout_NN[first:].mean(axis=0)
    seen_hw: Array = row_N[first:].reshape(inside.grid)
    return seen_hw
