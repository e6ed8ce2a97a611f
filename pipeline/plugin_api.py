"""Everything that a plugin may import from Patchline, and nothing else.

A plugin is one object of one of the four classes below, named by an entry point in the group of
its kind. Its config class derives from `PluginConfig`; its `build` makes the working part.
Importing this module imports neither torch nor pandas, so a plugin that keeps its own heavy
imports inside `build` costs nothing until it is used.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from pipeline.errors import ConfigError, DataError, PluginError
from pipeline.files.folder_walk import FoundFile, visible_folders, walk_files
from pipeline.section import Section

if TYPE_CHECKING:
    import torch


__all__ = [
    "API_VERSION",
    "NO_PATCH_EMBEDDING",
    "AugmentationContext",
    "AugmentationPlugin",
    "ConfigError",
    "DataError",
    "DataSource",
    "DataSourcePlugin",
    "DataTraits",
    "FoundFile",
    "ImageListing",
    "ImageSpec",
    "ListedImage",
    "ModelContext",
    "ModelPlugin",
    "PatchEmbeddingContext",
    "PatchEmbeddingPlugin",
    "PatchTokens",
    "PluginConfig",
    "PluginError",
    "SourceContext",
    "Split",
    "visible_folders",
    "walk_files",
]

API_VERSION = 1
"""Raised when a plugin written for the old contract would no longer work."""

Split = Literal["train", "validation", "test"]


class ImageSpec(Section):
    """What a model is fed, after decoding and resizing."""

    channels: Literal[1, 3]
    """1 for greyscale, 3 for RGB."""

    height: int
    """Pixels."""

    width: int
    """Pixels."""

    mean: tuple[float, ...]
    """Per channel, of the training split, on the scale 0 to 1."""

    std: tuple[float, ...]
    """Per channel, of the training split, on the scale 0 to 1."""

    resize: Literal["crop", "squash"]
    """How an image of another shape becomes this one."""


@dataclass(frozen=True)
class DataTraits:
    """What is known about the data once it has been read: settings left open are filled from it."""

    channels: int
    height: int
    width: int
    num_classes: int
    mirror_symmetric: bool
    """Whether a mirrored image still shows its class (false for digits and letters)."""


class PluginConfig(Section):
    """The settings of one plugin; derive from it."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Return the settings with everything filled in that depends on the data.

        Called once, before training. Raise `ConfigError` here for a setting that does not fit the
        images, with the value, the rule and the remedy in one sentence.
        """
        return self


C = TypeVar("C", bound=PluginConfig)

NO_PATCH_EMBEDDING = "none"
"""What stands in the settings for the patch embedding of a model that takes none."""


# -- models ------------------------------------------------------------------------------------


class PatchTokens(NamedTuple):
    """What a patch embedding returns: `tokens_BND`, row by row, and the grid they stand for."""

    tokens_BND: torch.Tensor
    grid: tuple[int, int]


@dataclass(frozen=True)
class PatchEmbeddingContext:
    """What a patch embedding is built for."""

    channels: int
    height: int
    width: int
    embed_dim: int


@dataclass(frozen=True)
class ModelContext:
    """What a model is built for."""

    image: ImageSpec
    num_classes: int
    patch_embedding: Callable[[int], torch.nn.Module]
    """Builds the chosen patch embedding for an embedding dimension D.

    The module maps `images_BCHW` to `PatchTokens` and knows its `grid` (rows, columns) before it
    has seen an image.
    """


@dataclass(frozen=True)
class ModelPlugin(Generic[C]):
    """A model: `images_BCHW` (normalised float) to `logits_BK`."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, ModelContext], torch.nn.Module]
    patch_embedding: str = "conv"
    """The patch embedding plugin that feeds it unless another is chosen, or `NO_PATCH_EMBEDDING`
    for a model that takes none."""
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that it does not pass, each with the reason."""
    api_version: int = API_VERSION


@dataclass(frozen=True)
class PatchEmbeddingPlugin(Generic[C]):
    """A patch embedding: `images_BCHW` to `PatchTokens`."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, PatchEmbeddingContext], torch.nn.Module]
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that it does not pass, each with the reason."""
    api_version: int = API_VERSION


# -- data --------------------------------------------------------------------------------------


class ListedImage(NamedTuple):
    """One file that a data source found. Nothing has been opened yet."""

    path: str
    """Relative to the listing's root, with forward slashes."""
    label: str
    """The class name; empty for a file that belongs to no class."""
    split: Split | None = None
    """Where the source puts the image; None leaves it to Patchline."""
    group: str | None = None
    """Images of one group (a patient, a video) never end up in different splits."""


@dataclass(frozen=True)
class ImageListing:
    """Everything that a data source knows before an image is opened."""

    name: str
    """What the data is called; the default name of the experiment and the model."""
    root: Path
    images: list[ListedImage] = field(default_factory=list)
    mirror_symmetric: bool = True
    empty_classes: list[str] = field(default_factory=list)
    """Classes that the source knows and found no file for; a warning names them."""


@dataclass(frozen=True)
class SourceContext:
    """Where a data source reads from, and where it may write."""

    path: str | None
    """What the user named, if anything."""
    work_dir: Path
    """A folder of the source's own, kept between runs."""


class DataSource(Protocol):
    """What a data source plugin builds."""

    def list_images(self) -> ImageListing:
        """Find the images and their labels; raise `DataError` when there are none."""
        ...


@dataclass(frozen=True)
class DataSourcePlugin(Generic[C]):
    """Where images and labels come from."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, SourceContext], DataSource]
    example: Callable[[Path], str] | None = None
    """Writes a few images of at least two classes into an empty folder, in the form that the
    source reads, and returns the path to name, for the checks. None if it needs no path."""
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that it does not pass, each with the reason."""
    api_version: int = API_VERSION


@dataclass(frozen=True)
class AugmentationContext:
    """What an augmentation is built for."""

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class AugmentationPlugin(Generic[C]):
    """Random changes to training images.

    `build` returns an `albumentations.Compose` that maps a uint8 image (H, W, C) to one of the
    same shape. Patchline seeds it before each image, so a plugin never seeds anything.
    """

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, AugmentationContext], Any]
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that it does not pass, each with the reason."""
    api_version: int = API_VERSION
