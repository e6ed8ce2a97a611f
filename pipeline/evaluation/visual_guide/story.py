"""What the visual guide is made of: steps, each with sentences, shapes and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import nn

from patchline.pipeline.evaluation.visual_guide.attention_maps import Attributions
from patchline.pipeline.evaluation.visual_guide.pictures import Picture
from patchline.pipeline.evaluation.visual_guide.traced_image import (
    PatchProjection,
    TracedImage,
    TracedTransformer,
)
from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.layer_scale import LayerScale
from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.locality_attention import LocalitySelfAttention
from patchline.pipeline.models.layers.pooling import ClassTokenPooling
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.templates import render_lines

Array = np.ndarray[Any, Any]
_Layer = TypeVar("_Layer", bound=nn.Module)


class Shape(NamedTuple):
    """The shape of a tensor of this step, read from the tensor itself."""

    name: str
    sizes: tuple[int, ...]
    meaning: str
    """The sizes as letters, as in the paper."""


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
    sentences: Sequence[str]
    figures: Sequence[Figure]
    shapes: Sequence[Shape]
    equation: int
    """Number of the equation of arXiv 2010.11929 that stands beside the step, where the model
    computes it; 0 for none."""
    applies: bool
    """Whether the model has such a part; if not, the sentences say what it does instead."""


@dataclass(frozen=True)
class Subject:
    """An image, a model, and everything that was computed: what the steps are written about."""

    model: nn.Module
    description: ModelDescription
    traced: TracedImage
    name: str
    """Name of the image on the page."""
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
        return find_given_labels(self.description, self.traced.probabilities_K)

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

    @property
    def has_embedding_norm(self) -> bool:
        """Whether the tokens are normalised before the first block."""
        return isinstance(getattr(self.model, "embedding_norm", None), nn.LayerNorm | nn.RMSNorm)

    @property
    def has_query_norm(self) -> bool:
        """Whether queries and keys are normalised."""
        norm = self.modules(MultiHeadSelfAttention)[0].get_submodule("query_norm")
        return bool(list(norm.parameters()))

    @property
    def is_rotary(self) -> bool:
        """Whether queries and keys are rotated by their place."""
        return bool(self.modules(RotarySelfAttention))

    @property
    def is_local(self) -> bool:
        """Whether no token attends to itself."""
        return bool(self.modules(LocalitySelfAttention))

    def step(
        self,
        key: str,
        figures: Sequence[Figure] = (),
        shapes: Sequence[Shape] = (),
        *,
        applies: bool = True,
        **facts: object,
    ) -> Step:
        """Return a step with its title and sentences, which `steps.txt.j2` has.

        Args:
            key: the step's key in the template.
            figures: figures that stand below the sentences.
            shapes: shapes of the step's tensors.
            applies: whether the model has such a part.
            facts: what the sentences tell beside what is known of this subject.
        """
        words = render_lines(
            "steps.txt.j2", __package__, key=key, applies=applies, subject=self, **facts
        )
        title, *sentences = words.strip().split("\n- ")
        equation = self._equation(key) if applies and self.traced.transformer else 0
        return Step(key, title, sentences, figures, shapes, equation, applies)

    def _equation(self, key: str) -> int:
        """Return the number of a step's equation in arXiv 2010.11929 if the model computes it."""
        adds_positions = self.modules(LearnedPositionEmbedding, SineCosinePositionEmbedding)
        is_layer_norm = isinstance(getattr(self.model, "norm", None), nn.LayerNorm)
        is_bare = not self.modules(LayerScale) and self.part("block.stream_norm") is None
        computed = {
            "input": list(self.inside.prefix) == ["class token"]
            and self.projection is not None
            and bool(adds_positions)
            and not self.has_embedding_norm,
            "residual": is_layer_norm and is_bare,
            "mlp": is_layer_norm and is_bare,
            "answer": is_layer_norm and bool(self.modules(ClassTokenPooling)),
            "queries-keys-values": not (self.has_query_norm or self.is_rotary),
            "softmax": not self.is_local,
            "weighted-sum": True,
            "concatenation": True,
        }
        return [*computed].index(key) + 1 if computed.get(key) else 0

    def modules(self, *kinds: type[_Layer]) -> list[_Layer]:
        """Return the model's parts of certain classes."""
        return [module for module in self.model.modules() if isinstance(module, kinds)]

    def part(self, name: str) -> Array | None:
        """Return the output of a part of the model, if the part exists."""
        parts: Mapping[str, Any] = self.inside.parts
        return parts[name].numpy() if name in parts else None


def shape_of(name: str, tensor: Any, meaning: str) -> Shape:
    """Return the shape of a tensor or array."""
    return Shape(name, tuple(int(size) for size in tensor.shape), meaning)


def line(name: str, values: Array, first: int = 1) -> ChartLine:
    """Return the line of a value for each layer, from the first layer's number on."""
    return ChartLine(name, tuple((float(x), float(y)) for x, y in enumerate(values, first)))


def rank(values_K: Array) -> list[int]:
    """Return the places of values, the largest first."""
    order: list[int] = np.argsort(-values_K, kind="stable").tolist()
    return order


def find_given_labels(description: ModelDescription, probabilities_K: Array) -> tuple[int, ...]:
    """Return the numbers of the labels at or above their thresholds, the most probable first.

    Args:
        description: description of a multi-label model; any other model gives no labels.
        probabilities_K: probabilities of the labels for one image.
    """
    if description.thresholds is None:
        return ()
    best = rank(probabilities_K)
    return tuple(k for k in best if probabilities_K[k] >= description.thresholds.values[k])
