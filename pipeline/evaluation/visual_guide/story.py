"""What the visual guide is made of: steps, each with sentences, shapes and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from patchline.pipeline.evaluation.visual_guide.attention_maps import Attributions
from patchline.pipeline.evaluation.visual_guide.patch_projection import PatchProjection
from patchline.pipeline.evaluation.visual_guide.pictures import Picture
from patchline.pipeline.evaluation.visual_guide.traced_image import TracedImage, TracedTransformer
from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.layer_scale import LayerScale
from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.locality_attention import LocalitySelfAttention
from patchline.pipeline.models.layers.pooling import ClassTokenPooling
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding
from patchline.pipeline.models.model_description import ModelDescription

Array = np.ndarray[Any, Any]


class Shape(NamedTuple):
    """The shape of a tensor of this step, read from the tensor itself."""

    name: str
    sizes: tuple[int, ...]
    meaning: str
    """The same with letters, as in the paper."""


class Bar(NamedTuple):
    """A row of a bar chart."""

    name: str
    share: float
    """Length of the bar, 0 to 1."""
    value: str
    marked: bool = False


@dataclass(frozen=True)
class Bars:
    """A bar chart that is also a table."""

    caption: str
    rows: tuple[Bar, ...]
    live: str = ""


class ChartLine(NamedTuple):
    """A line of a chart; without a line, only its dots are drawn."""

    name: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines over the layers."""

    caption: str
    alt: str
    lines: tuple[ChartLine, ...]
    top: float
    """The largest value of the vertical axis, which begins at 0."""
    unit: str
    percent: bool = False


Figure = Picture | Bars | Chart


@dataclass(frozen=True)
class Step:
    """One step of the guide."""

    key: str
    title: str
    sentences: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    shapes: tuple[Shape, ...] = ()
    equation: int = 0
    """Number of the equation of arXiv 2010.11929 that stands beside the step, where the model
    computes it; 0 for none."""
    applies: bool = True
    """False if the model has no such part; the sentences then say what it does instead."""
    views: tuple[str, ...] = ()
    """Controls that the step offers if the script runs: `tokens`, `layers`, `heads`."""


@dataclass(frozen=True)
class Subject:
    """An image, a model, and everything that was computed: what the steps are written about."""

    model: nn.Module
    description: ModelDescription
    traced: TracedImage
    name: str
    """The image, as the page calls it."""
    photo: Picture
    """The image before it was resized."""
    true_label: int | None
    attributions: Attributions
    projection: PatchProjection | None = None
    token: int = 0
    """The token that is shown first: the class token, or a patch in the middle."""
    head: int = 0
    """The head that is shown first, of the first block."""
    rollout_NN: Array = field(default_factory=lambda: np.zeros((0, 0)))
    distances_LA: Array = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def inside(self) -> TracedTransformer:
        """The values inside the model.

        Raises:
            ValueError: for a model whose inside is not known.
        """
        if self.traced.transformer is None:
            raise ValueError(self.traced.why_closed)
        return self.traced.transformer

    @property
    def predicted(self) -> str:
        """The most probable class; of a multi-label model, the labels that are given."""
        classes = self.description.classes
        if self.description.is_multi_label:
            return ", ".join(classes[k] for k in self.labels) or "no label"
        return classes[self.traced.predicted]

    @property
    def labels(self) -> tuple[int, ...]:
        """Numbers of the labels that a multi-label model gives, the most probable first."""
        return given_labels(self.description, self.traced.probabilities_K)

    @property
    def the_token(self) -> str:
        """The token that is shown first, within a sentence: `the class token`, `patch 17`."""
        name = self.inside.token_name(self.token)
        return f"the {name}" if self.token < len(self.inside.prefix) else name

    @property
    def rollout_row(self) -> Array:
        """How much of each token reaches the class token, or without one the average token."""
        if "class token" in self.inside.prefix:
            own: Array = self.rollout_NN[0]
            return own
        mean: Array = self.rollout_NN.mean(axis=0)
        return mean

    def equation(self, number: int) -> int:
        """Return the number of an equation of arXiv 2010.11929 if the model computes it, else 0."""
        attention = self.modules(MultiHeadSelfAttention)[0]
        has_query_norm = any(True for _ in attention.get_submodule("query_norm").parameters())
        is_rotary = isinstance(attention, RotarySelfAttention)
        adds_positions = self.modules(LearnedPositionEmbedding, SineCosinePositionEmbedding)
        embedding_norm = getattr(self.model, "embedding_norm", None)
        is_layer_norm = isinstance(getattr(self.model, "norm", None), nn.LayerNorm)
        is_bare = not self.modules(LayerScale) and self.part("block.stream_norm") is None
        computed = {
            1: list(self.inside.prefix) == ["class token"]
            and self.projection is not None
            and bool(adds_positions)
            and not isinstance(embedding_norm, nn.LayerNorm | nn.RMSNorm),
            2: is_layer_norm and is_bare,
            3: is_layer_norm and is_bare,
            4: is_layer_norm and bool(self.modules(ClassTokenPooling)),
            5: not (has_query_norm or is_rotary),
            6: not self.modules(LocalitySelfAttention),
        }
        return number if computed[number] else 0

    def modules(self, *kinds: type[nn.Module]) -> list[nn.Module]:
        """Return the model's parts of certain classes."""
        return [module for module in self.model.modules() if isinstance(module, kinds)]

    def part(self, name: str) -> Array | None:
        """Return the output of a part of the model, if the part exists."""
        parts: Mapping[str, Any] = self.inside.parts
        return parts[name].numpy() if name in parts else None


def shape_of(name: str, tensor: Any, meaning: str) -> Shape:
    """Return the shape of a tensor or array."""
    return Shape(name, tuple(int(size) for size in tensor.shape), meaning)


def given_labels(description: ModelDescription, probabilities_K: Array) -> tuple[int, ...]:
    """Return the numbers of the labels at or above their thresholds, the most probable first.

    Args:
        description: of a multi-label model; for any other, there are none.
        probabilities_K: of one image.
    """
    if description.thresholds is None:
        return ()
    ranked = np.argsort(-probabilities_K, kind="stable").tolist()
    return tuple(k for k in ranked if probabilities_K[k] >= description.thresholds.values[k])
