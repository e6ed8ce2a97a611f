"""The plugin API: everything that a plugin may import from Patchline besides `pipeline.layers`.

A plugin is an instance of one of the four plugin classes below, registered by an entry point in the
group of its kind. Its config class derives from `PluginConfig`; its `build` creates the object that
does the work. Importing this module imports neither torch nor pandas, so a plugin that keeps its
heavy imports inside `build` costs nothing until it is used.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from pipeline.errors import ConfigError, DataError, PluginError
from pipeline.files.archives import (
    check_expansion,
    open_archive,
    readable_archive,
)
from pipeline.files.data_names import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    Split,
    split_named,
    stem_of,
    valid_name,
)
from pipeline.files.folder_walk import FoundFile, visible_folders, walk_files
from pipeline.files.made_once import known_digest, made_once
from pipeline.section import Section

if TYPE_CHECKING:
    import torch


__all__ = [
    "API_VERSION",
    "ARCHIVE_SUFFIXES",
    "IMAGE_SUFFIXES",
    "NO_PATCH_EMBEDDING",
    "TABLE_SUFFIXES",
    "AugmentationContext",
    "AugmentationPlugin",
    "BatchRandom",
    "BatchTransform",
    "ConfigError",
    "DataError",
    "DataSource",
    "DataSourcePlugin",
    "DataTraits",
    "FoundFile",
    "ImageListing",
    "ImageSpec",
    "LeftOutFile",
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
    "check_expansion",
    "known_digest",
    "made_once",
    "open_archive",
    "readable_archive",
    "split_named",
    "stem_of",
    "valid_name",
    "visible_folders",
    "walk_files",
]

API_VERSION = 1
"""Incremented when plugins written for the previous API would no longer work."""


class ImageSpec(Section):
    """The format of a model's input images, after decoding and resizing."""

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
    """How an image of another shape is resized: scale and crop, or squash."""


@dataclass(frozen=True)
class DataTraits:
    """Properties of the data, known once it has been read; they fill in settings left open."""

    channels: int
    height: int
    width: int
    num_classes: int
    mirror_symmetric: bool
    """Whether a mirrored image still shows its class (False for digits and letters)."""


class PluginConfig(Section):
    """Base class for the settings of a plugin."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Return the settings with everything that depends on the data filled in.

        Called once, before training. Raise `ConfigError` for a setting that does not fit the
        images; its message names the value, the rule and the remedy.
        """
        return self


C = TypeVar("C", bound=PluginConfig)

NO_PATCH_EMBEDDING = "none"
"""Name of the patch embedding in the settings of a model that takes none."""


P = TypeVar("P")


def _accepts_exceptions(plugin_class: type[P]) -> type[P]:
    """Accept `exceptions=`, the former name of `expected_failed_checks=`, for one release."""
    initialise: Callable[..., None] = plugin_class.__init__

    @functools.wraps(initialise)
    def accept(
        self: P, *args: Any, exceptions: Mapping[str, str] | None = None, **named: Any
    ) -> None:
        if exceptions is not None:
            warnings.warn(_RENAMED, DeprecationWarning, stacklevel=2)
            named["expected_failed_checks"] = exceptions
        initialise(self, *args, **named)

    def exceptions(plugin: Any) -> Mapping[str, str]:
        warnings.warn(_RENAMED, DeprecationWarning, stacklevel=2)
        expected: Mapping[str, str] = plugin.expected_failed_checks
        return expected

    setattr(plugin_class, "__init__", accept)  # noqa: B010 - mypy refuses the assignment
    setattr(plugin_class, "exceptions", property(exceptions))  # noqa: B010 - the same
    return plugin_class


_RENAMED = (
    "exceptions is now called expected_failed_checks. The old name will stop working in the next "
    "release; rename it."
)


# -- models ------------------------------------------------------------------------------------


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


@_accepts_exceptions
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
    """Checks of `pipeline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


@_accepts_exceptions
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
    """Checks of `pipeline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


# -- data --------------------------------------------------------------------------------------


class ListedImage(NamedTuple):
    """A file found by a data source; it has not been opened yet."""

    path: str
    """Relative to the listing's root, with forward slashes."""
    label: str
    """The class name; empty for a file without a class."""
    split: Split | None = None
    """The split given by the source; None lets Patchline choose."""
    group: str | None = None
    """Images of one group (a patient, a video) never end up in different splits."""


class LeftOutFile(NamedTuple):
    """A file that a data source found but does not use; it is named where the data is described."""

    path: str
    """As in `ListedImage`; it is never opened."""
    reason: str
    """Why it is not used: `is a link; links in archives are not followed`."""
    status: Literal["damaged", "foreign"] = "damaged"
    """Whether it should be an image of a class (`damaged`), or is something else (`foreign`)."""


@dataclass(frozen=True)
class ImageListing:
    """The images of a data source, before any is opened."""

    name: str
    """Name of the data; the default name of the experiment and the model."""
    root: Path
    """The folder that the images' paths are relative to, or a zip or uncompressed tar file; then
    the paths name members of the archive, which is read in place."""
    images: list[ListedImage] = field(default_factory=list)
    mirror_symmetric: bool = True
    empty_classes: list[str] = field(default_factory=list)
    """Classes without any file; a warning names them."""
    left_out: list[LeftOutFile] = field(default_factory=list)
    """Files that are not used; none of them is among the images."""
    notes: list[str] = field(default_factory=list)
    """What a person should know, such as a guess that the source made; shown with the data."""
    columns: Mapping[str, list[str]] = field(default_factory=dict)
    """Further facts by name, with a text for each of `images`. The manifest keeps them as columns
    `column:NAME`; the data's version does not depend on them."""


@dataclass(frozen=True)
class SourceContext:
    """Input path and working folder for building a data source."""

    path: str | None
    """The path given by the user, if any."""
    work_dir: Path
    """A folder for files of the source, kept between runs."""


class DataSource(Protocol):
    """The object that a data source plugin builds."""

    def list_images(self) -> ImageListing:
        """Return the images and their labels; raise `DataError` if there are none."""
        ...


@_accepts_exceptions
@dataclass(frozen=True)
class DataSourcePlugin(Generic[C]):
    """A data source: lists images and their labels."""

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, SourceContext], DataSource]
    example: Callable[[Path], str] | None = None
    """For the checks: write a few images of at least two classes into an empty folder, in the
    source's format, and return the path to pass to it. None for a source that needs no path."""
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


@dataclass(frozen=True)
class AugmentationContext:
    """Image size for building an augmentation."""

    channels: int
    height: int
    width: int


class BatchRandom(Protocol):
    """Random numbers for a batch of B images, as tensors on the device of the images.

    The numbers of an image depend only on the seed, the epoch, the image and the order of the
    calls; not on the other images of the batch. Each call returns new numbers.
    """

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Return float32 numbers (B, *shape), evenly distributed from `low` to `high`."""
        ...

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers (B, *shape), at least `low` and less than `high`."""
        ...

    def pixels(self, *shape: int) -> torch.Tensor:
        """Return uint8 numbers (B, *shape), evenly distributed from 0 to 255."""
        ...


BatchTransform: TypeAlias = "Callable[[torch.Tensor, BatchRandom], torch.Tensor]"
"""Maps uint8 images (B, H, W, C) to uint8 images of the same shape, on the same device.

It must draw all random numbers from the `BatchRandom` and treat every image by itself: an image
looks the same in a batch of one. It must not modify its input.
"""


def _no_image_transform(_config: PluginConfig, _context: AugmentationContext) -> None:
    """Build nothing, for a plugin that transforms only whole batches."""


@_accepts_exceptions
@dataclass(frozen=True)
class AugmentationPlugin(Generic[C]):
    """An augmentation: random transforms of training images.

    A plugin has a `build`, a `build_batch`, or both; then each image passes through the former
    first. Patchline seeds both; a plugin must not seed anything.
    """

    summary: str
    paper: str
    config_class: type[C]
    build: Callable[[C, AugmentationContext], Any] = _no_image_transform
    """Return an `albumentations.Compose` that maps a uint8 image (H, W, C) to a uint8 image of the
    same shape. It runs image by image, in the data-loader workers."""
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `pipeline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION
    build_batch: Callable[[C, AugmentationContext], BatchTransform] | None = None
    """Return a transform of whole batches. It runs on the training device, in the training process,
    and is much faster than `build` for small images."""
