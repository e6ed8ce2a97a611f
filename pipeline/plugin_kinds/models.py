"""Models and patch embeddings.

Shapes: B batch, C channels, H height, W width, N patches, V visible patches, P tokens before the
patches (class token, registers), D embedding, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, runtime_checkable

from patchline.pipeline.plugin_kinds.plugin_config import API_VERSION, C, ImageSpec

if TYPE_CHECKING:
    import torch

NO_PATCH_EMBEDDING = "none"
"""Name of the patch embedding in the settings of a model that takes none."""


class PatchTokens(NamedTuple):
    """The output of a patch embedding: `tokens_BND`, row by row, and their grid (rows, columns)."""

    tokens_BND: torch.Tensor
    grid: tuple[int, int]


@dataclass(frozen=True)
class PatchEmbeddingContext:
    """Input size and embedding dimension for building a patch embedding."""

    channels: int
    height: int
    width: int
    embed_dim: int


@dataclass(frozen=True)
class ModelContext:
    """Input format, number of classes and patch embedding for building a model."""

    image: ImageSpec
    num_classes: int
    patch_embedding: Callable[[int], torch.nn.Module]
    """Build the chosen patch embedding for an embedding dimension D.

    The module maps `images_BCHW` to `PatchTokens`; its attribute `grid` (rows, columns) is set when
    it is built.
    """


@dataclass(frozen=True)
class ModelPlugin(Generic[C]):
    """A model: `images_BCHW` (normalised float) to `logits_BK`."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, ModelContext], torch.nn.Module]
    patch_embedding: str = "conv"
    """The default patch embedding plugin, or `NO_PATCH_EMBEDDING` for a model that takes none."""
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


@dataclass(frozen=True)
class PatchEmbeddingPlugin(Generic[C]):
    """A patch embedding: `images_BCHW` to `PatchTokens`.

    A module may have a method `initialise_from(images_BCHW)`: before training, it is called once
    with normalised training images, for layers whose initial values depend on the data.
    """

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, PatchEmbeddingContext], torch.nn.Module]
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


@runtime_checkable
class Encoder(Protocol):
    """A model that encodes an image even if most of its patches are hidden.

    It also has an attribute `patch_embedding`, the module with the grid. Pre-training that hides
    patches needs it; a model without it can be trained in every other way.
    """

    def encode(
        self, images_BCHW: torch.Tensor, visible_BV: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the tokens that the head is computed from, normalised: (B, P + N, D).

        Args:
            images_BCHW: normalised.
            visible_BV: numbers of the visible patches of each image, row by row from 0; only these
                are encoded then, in this order: (B, P + V, D).
        """
        ...
