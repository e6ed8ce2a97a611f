"""The plugin API: all that a plugin may import besides `patchline.pipeline.models.layers`.

A plugin is an instance of one of the eight plugin classes below, registered by an entry point in
the group of its kind. Its config class derives from `PluginConfig`; its `build` creates the object
that does the work. Importing this module imports neither torch nor pandas, so a plugin that keeps
its heavy imports inside `build` costs nothing until it is used.

Shapes: B batch, C channels, H height, W width, N patches, V visible patches, P tokens before the
patches (class token, registers), D embedding, K classes.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    runtime_checkable,
)

from patchline.pipeline.data.labels.answer_columns import (
    ANSWER_COLUMNS,
    ANSWER_GROUP,
    ANSWER_SOURCE,
    answer_groups,
    answer_rules,
    answer_sources,
    are_answers,
)
from patchline.pipeline.data.labels.folder_levels import unclear_level
from patchline.pipeline.data.labels.label_cells import read_label_cells
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.labels.reading_rules import ReadingRules
from patchline.pipeline.data.labels.set_cells import (
    SetCells,
    check_branches,
    innermost_paths,
    is_several,
    read_set_cells,
)
from patchline.pipeline.errors import (
    ConfigError,
    DataError,
    PipelineError,
    PluginError,
    StorageError,
    WorkerError,
)
from patchline.pipeline.frozen_model import DocumentedModel, FrozenModel
from patchline.pipeline.workers.launcher import Launcher, Resources, RunningWorker, WorkerTask
from patchline.pipeline.workers.worker_start import LocalLauncher
from patchline.pipeline.workspace.files.archive_members import check_expansion
from patchline.pipeline.workspace.files.archives import open_archive, readable_archive, shard_index
from patchline.pipeline.workspace.files.data_kinds import coco_files, metadata_files, table_parts
from patchline.pipeline.workspace.files.data_names import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    Split,
    split_named,
    stem_of,
    valid_name,
)
from patchline.pipeline.workspace.files.file_locks import known_digest, made_once
from patchline.pipeline.workspace.files.folder_walk import (
    FoundFile,
    IgnoredFiles,
    visible_folders,
    walk_files,
)
from patchline.pipeline.workspace.files.table_cells import plain_cell
from patchline.pipeline.workspace.files.tar_archive import sample_key, shards_in

if TYPE_CHECKING:
    import numpy as np
    import torch

    from patchline.pipeline.workspace.object_store import (
        Address,
        ConflictError,
        Content,
        FolderStore,
        ObjectInfo,
        ObjectState,
        ObjectStore,
    )

__all__ = [
    "ANSWER_COLUMNS",
    "ANSWER_GROUP",
    "ANSWER_SOURCE",
    "API_VERSION",
    "ARCHIVE_SUFFIXES",
    "IMAGE_SUFFIXES",
    "MULTI_LABEL",
    "NO_PATCH_EMBEDDING",
    "SINGLE_LABEL",
    "TABLE_SUFFIXES",
    "Address",
    "Assumptions",
    "AugmentationContext",
    "AugmentationPlugin",
    "BatchRandom",
    "BatchTransform",
    "ConfigError",
    "ConflictError",
    "Content",
    "DataError",
    "DataSource",
    "DataSourcePlugin",
    "DataTraits",
    "DrawnTransform",
    "Encoder",
    "FolderStore",
    "FoundFile",
    "IgnoredFiles",
    "ImageListing",
    "ImageSpec",
    "Launcher",
    "LauncherContext",
    "LauncherPlugin",
    "LeftOutFile",
    "ListedImage",
    "LocalLauncher",
    "ModelContext",
    "ModelPlugin",
    "ObjectInfo",
    "ObjectState",
    "ObjectStore",
    "Objective",
    "ObjectiveContext",
    "ObjectivePlugin",
    "PatchEmbeddingContext",
    "PatchEmbeddingPlugin",
    "PatchTokens",
    "PipelineError",
    "PixelValues",
    "PluginConfig",
    "PluginError",
    "ReadingRules",
    "Resources",
    "RunningWorker",
    "SetCells",
    "SourceContext",
    "Split",
    "StorageError",
    "StoreContext",
    "StorePlugin",
    "ToolCommand",
    "ToolEvent",
    "ToolPlugin",
    "ToolService",
    "ToolWork",
    "ValueRange",
    "WorkRequest",
    "WorkerError",
    "WorkerTask",
    "answer_groups",
    "answer_rules",
    "answer_sources",
    "are_answers",
    "check_branches",
    "check_expansion",
    "coco_files",
    "innermost_paths",
    "is_several",
    "known_digest",
    "made_once",
    "metadata_files",
    "open_archive",
    "plain_cell",
    "read_label_cells",
    "read_set_cells",
    "readable_archive",
    "sample_key",
    "shard_index",
    "shards_in",
    "split_named",
    "stem_of",
    "table_parts",
    "unclear_level",
    "valid_name",
    "visible_folders",
    "walk_files",
]


def __getattr__(name: str) -> Any:
    """Import what stores are made of when it is used: other plugins do not depend on it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module("patchline.pipeline.workspace.object_store"), name)


# -- settings, and the format of the images --------------------------------------------------------

API_VERSION = 1
"""Incremented when plugins written for the previous API would no longer work."""


class ValueRange(FrozenModel):
    """Which pixel values of one type become black and white."""

    kind: str
    """Type of the values: `uint16`, `int16`, `int32`, `float`, …"""

    low: float
    """The value that becomes 0, as does what is below."""

    high: float
    """The value that becomes 255, as does what is above."""

    origin: str = ""
    """How the range was found."""


class PixelValues(FrozenModel):
    """What becomes of pixel values and bands that are not 8 bits of grey or RGB."""

    ranges: tuple[ValueRange, ...] = ()
    """A range for each type of values; empty if all images have 8 bits per color."""

    bands: tuple[int, ...] = ()
    """The bands that are used, counted from 1; empty for the colors of each image's format."""

    opacity: bool = True
    """Whether transparent pixels become white."""

    eight_bit: bool = True
    """Whether images of 8 bits per color are among those of the training."""


class ImageSpec(FrozenModel):
    """The format of a model's input images, after decoding and resizing."""

    channels: Literal[1, 3]
    """The number of channels: 1 for greyscale, 3 for RGB."""

    height: int
    """The height of an image, in pixels."""

    width: int
    """The width of an image, in pixels."""

    mean: tuple[float, ...]
    """The mean of each channel over the training split, on the scale 0 to 1."""

    std: tuple[float, ...]
    """The standard deviation of each channel over the training split, on the scale 0 to 1."""

    resize: Literal["crop", "squash", "pad"]
    """How an image of another shape is resized: scale and crop, squash, or scale and pad."""

    pixel_values: PixelValues = PixelValues()
    """What becomes of values and bands that are not 8 bits of grey or RGB."""


@dataclass(frozen=True)
class DataTraits:
    """Properties of the data, known once it has been read; they fill in settings left open."""

    channels: int
    height: int
    width: int
    num_classes: int
    mirror_symmetric: bool
    """Whether a mirrored image still shows its class (False for digits and letters)."""


class PluginConfig(DocumentedModel):
    """Base class for the settings of a plugin."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Return the settings with everything that depends on the data filled in.

        Called once, before training. Raise `ConfigError` for a setting that does not fit the
        images; its message names the value, the rule and the remedy.
        """
        return self


C = TypeVar("C", bound=PluginConfig)


@dataclass(frozen=True, kw_only=True)
class _Plugin:
    """What any plugin may declare."""

    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION


@dataclass(frozen=True)
class _Described(_Plugin, Generic[C]):
    """What a plugin with settings is described by."""

    summary: str
    paper: str
    config_class: type[C]


# -- models and patch embeddings -------------------------------------------------------------------

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
class ModelPlugin(_Described[C]):
    """A model: `images_BCHW` (normalised float, channels last in memory) to `logits_BK`."""

    build: Callable[[C, ModelContext], torch.nn.Module]
    patch_embedding: str = "conv"
    """The default patch embedding plugin, or `NO_PATCH_EMBEDDING` for a model that takes none."""


@dataclass(frozen=True)
class PatchEmbeddingPlugin(_Described[C]):
    """A patch embedding: `images_BCHW` to `PatchTokens`.

    A module may have a method `initialise_from(images_BCHW)`: before training, it is called once
    with normalised training images, for layers whose initial values depend on the data.
    """

    build: Callable[[C, PatchEmbeddingContext], torch.nn.Module]


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
            images_BCHW: normalised images.
            visible_BV: numbers of the visible patches of each image, row by row from 0; only these
                are encoded then, in this order: (B, P + V, D).
        """
        ...


# -- data sources: where the images and their labels come from -------------------------------------


class ListedImage(NamedTuple):
    """A file found by a data source; it has not been opened yet."""

    path: str
    """The file's path, relative to the listing's root, with forward slashes."""
    label: str
    """The class name; empty for a file without a class."""
    split: Split | None = None
    """The split given by the source; None lets Patchline choose."""
    group: str | None = None
    """Images of one group (a patient, a video) never end up in different splits."""
    labels: tuple[str, ...] | None = None
    """The names of all its classes, possibly none, in data of several labels, where `label` is
    empty; None in data of one label each. A listing has either kind, never both."""


class LeftOutFile(NamedTuple):
    """A file that a data source found but does not use; it is named where the data is described."""

    path: str
    """The file's path, as in `ListedImage`; it is never opened."""
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
    mirror_symmetric: bool | None = None
    """Whether a mirrored image still shows its class; None if the source does not know, so that it
    is measured."""
    empty_classes: list[str] = field(default_factory=list)
    """Classes without any file; a warning names them."""
    left_out: list[LeftOutFile] = field(default_factory=list)
    """Files that are not used; none of them is among the images."""
    notes: list[str] = field(default_factory=list)
    """What a person should know, such as a guess that the source made; shown with the data."""
    columns: Mapping[str, list[str]] = field(default_factory=dict)
    """Further facts by name, with a text for each of `images`. The manifest keeps them as columns
    `column:NAME`; the data's version does not depend on them."""
    ignored: list[str] = field(default_factory=list)
    """Files that `SourceContext.ignored` skips, and folders, which end in a slash."""

    @property
    def is_multi_label(self) -> bool:
        """Whether its images have sets of labels."""
        return any(image.labels is not None for image in self.images)


@dataclass(frozen=True)
class SourceContext:
    """Input path and working folder for building a data source."""

    path: str | None
    """The path given by the user, if any."""
    work_dir: Path
    """A folder for files of the source, kept between runs."""
    needs_labels: bool = True
    """Whether images without a class are of no use. Otherwise, list them with an empty label."""
    rules: ReadingRules = field(default_factory=ReadingRules)
    """Settings that concern several sources, such as the cells that mean no label."""
    task: Literal["auto", "single_label", "multi_label"] = "auto"
    """What is to be learned; auto lets the labels decide."""
    local_files: Callable[[Path, Sequence[str]], dict[str, str]] = lambda _folder, _values: {}
    """Returns the local file for each path in a table that lies on an object store, from the folder
    that relative paths start from, and what the table holds. Such are addresses
    (`s3://bucket/rose/1.jpg`), and relative paths in a table that lies there itself; they are
    downloaded once. Any other value is not in the answer."""

    @cached_property
    def ignored(self) -> IgnoredFiles:
        """What tells which files and folders are skipped, such as thumbnails of other programs.

        Whatever a source lists of them is left out afterwards; a source that derives classes from
        names should skip them itself.
        """
        return IgnoredFiles(self.rules.ignore)


class DataSource(Protocol):
    """The object that a data source plugin builds."""

    def list_images(self) -> ImageListing:
        """Return the images and their labels; raise `DataError` if there are none."""
        ...


@dataclass(frozen=True)
class DataSourcePlugin(_Described[C]):
    """A data source: lists images and their labels."""

    build: Callable[[C, SourceContext], DataSource]
    example: Callable[[Path], str] | None = None
    """A function for the checks: it writes a few images of at least two classes into an empty
    folder, in the source's format, and returns the path to pass to the source. None for a source
    that needs no path."""
    reads_ranges: bool = False
    """Whether it opens an archive by `readable_archive` and `open_archive` alone. One on an object
    store is then read by ranges; otherwise it is downloaded first."""


# -- augmentations: random changes to the training images ------------------------------------------


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

    def alternating(self) -> torch.Tensor:
        """Return a bool for each image (B,), random in the first epoch, then alternating."""
        ...


@dataclass(frozen=True)
class Assumptions:
    """What an augmentation takes for granted: that these changes keep what an image shows.

    Shifts of up to a quarter of a side, crops to at least half of the area, rotations of up to 45
    degrees, noise, and changes of brightness and contrast need not be listed.
    """

    mirrors: str = ""
    """How it mirrors images whatever the data, in words such as "HorizontalFlip in flips.yaml";
    empty if it does not, or only by a setting `horizontal_flip`."""
    changes: tuple[str, ...] = ()
    """Other changes, which nothing measures, in words such as "rotations of up to 90 degrees"."""


BatchTransform: TypeAlias = "Callable[[torch.Tensor, BatchRandom], torch.Tensor]"
"""Maps uint8 images (B, H, W, C) to uint8 images of the same shape, on the same device.

It must draw all random numbers from the `BatchRandom` and treat every image by itself: an image
looks the same in a batch of one. It must not modify its input.
"""


@runtime_checkable
class DrawnTransform(Protocol):
    """A transform of single images that can also draw without them, and change whole batches.

    The `albumentations.Compose` that a plugin's `build` returns may have these two methods. On a
    GPU they replace its call, so that images stay there and need no data-loader workers.
    """

    def draw(self) -> np.ndarray[Any, Any]:
        """Return what a call would draw now for one image: float64, always of the same shape."""
        ...

    def change(self, images_BHWC: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return what calls with these numbers return, up to rounding; the input stays as it is.

        Args:
            images_BHWC: the images, uint8, on any device.
            drawn: what `draw` has returned for each image, (B, *shape), on the CPU.
        """
        ...


def _no_image_transform(_config: PluginConfig, _context: AugmentationContext) -> None:
    """Build nothing, for a plugin that transforms only whole batches."""


@dataclass(frozen=True)
class AugmentationPlugin(_Described[C]):
    """An augmentation: random transforms of training images.

    A plugin has a `build`, a `build_batch`, or both; then each image passes through the former
    first. Patchline seeds both; a plugin must not seed anything.
    """

    build: Callable[[C, AugmentationContext], Any] = _no_image_transform
    """Return an `albumentations.Compose` that maps a uint8 image (H, W, C) to a uint8 image of the
    same shape. It runs image by image, in the data-loader workers; on a GPU, if it is also a
    `DrawnTransform`, for whole batches."""
    build_batch: Callable[[C, AugmentationContext], BatchTransform] | None = None
    """Return a transform of whole batches. It runs on the training device, in the training process,
    and is much faster than `build` for small images."""
    assumptions: Callable[[C], Assumptions] | None = None
    """Return what the transforms take for granted with some settings. Without it, Patchline says
    that it is not known whether they keep the class."""


# -- objectives: what training minimises -----------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveContext:
    """Input format, number of classes and classification loss for building an objective."""

    image: ImageSpec
    num_classes: int
    """The number of classes, K; 0 for an objective that uses no labels."""
    classification_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The loss that `training.loss`, `training.label_smoothing` and `training.class_balance` set:
    logits (B, K) and targets to the mean loss of the images."""


class Objective(ABC):
    """What training minimises: a module that it trains, and the loss of the module's outputs.

    By default, the model itself is trained. All random numbers of a step must come from torch's
    global generator, which is seeded before each step.
    """

    def training_module(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the module to train: the model, or one that contains it as a submodule.

        The module maps normalised images (B, C, H, W) to outputs whose first dimension is B;
        outputs of shape (B,) are taken as the losses of the images. In evaluation mode, the outputs
        of an image must not depend on chance or on the other images. Raise `ConfigError` for a
        model that cannot be trained in this way.
        """
        return model

    def model_in(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the model inside a module that `training_module` returned, or inside a copy."""
        return module

    @abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the images of a batch, in float32.

        Args:
            outputs: the module's outputs for the batch; their first dimension is B.
            targets: class indices (B) or probabilities (B, K); without meaning for an objective
                that uses no labels.
        """

    def pictures(
        self,
        module: torch.nn.Module,  # noqa: ARG002 - for subclasses
        images_BCHW: torch.Tensor,  # noqa: ARG002 - for subclasses
    ) -> dict[str, torch.Tensor]:
        """Return pictures of what was learned, such as reconstructions of the images.

        Args:
            module: the module that was trained, in evaluation mode.
            images_BCHW: normalised test images.

        Returns:
            For each title, an image (B, C, H, W) for each image, normalised in the same way;
            nothing if there is nothing to see.
        """
        return {}


@dataclass(frozen=True)
class ObjectivePlugin(_Described[C]):
    """An objective: supervised classification, or pre-training without labels."""

    build: Callable[[C, ObjectiveContext], Objective]
    uses_labels: bool = True
    """Whether it needs classes, and its module's outputs are logits (B, K). Otherwise the run
    registers an encoder, from which classifiers can start (`model.init`)."""


# -- launchers: where the processes of a run compute -----------------------------------------------


@dataclass(frozen=True)
class LauncherContext:
    """The workspace for building a launcher."""

    workspace: Path
    """Absolute path of the folder below which workers read and write all files of a run, but the
    source's own images."""


@dataclass(frozen=True)
class LauncherPlugin(_Described[C]):
    """A launcher: runs the worker processes of a run somewhere.

    Its `build` does not start anything yet. Where a run computes changes none of its results.
    """

    build: Callable[[C, LauncherContext], Launcher]


# -- stores: where machines share a workspace, and where images may lie ---------------------------


@dataclass(frozen=True)
class StoreContext:
    """The address for building a store."""

    address: Address
    """The address that keys of the store are relative to."""
    patience_seconds: float | None = None
    """How long a request that fails is repeated; None leaves it to the store."""


@dataclass(frozen=True)
class StorePlugin(_Described[C]):
    """A store of objects; its name is the scheme of its addresses, `s3` of `s3://bucket/photos`."""

    build: Callable[[C, StoreContext], ObjectStore]
    example: Callable[[Path], str]
    """Returns an address for the conformance checks, given an empty folder; they write and delete
    objects below it. Raises `ConfigError` with what is needed for one, such as a variable."""


@dataclass(frozen=True)
class ToolCommand:
    """A command of a tool, `patchline WORDS`."""

    words: str
    """What is typed behind `patchline`: one word, or two of which the first is a group."""
    function: str
    """`package.module:function`, imported when it is called: f"{__package__}.command:export", or
    f"{__name__}:export" in a single file. Its signature gives the arguments and flags, as cyclopts
    reads them; a returned integer is the exit code."""
    help: str
    """The function's docstring up to the parameters."""
    composed: bool = False
    """Whether the function takes the arguments and returns the command, with plugins' settings."""
    reads_only: bool = False
    """Whether it works in a workspace that may not be written."""
    examples: tuple[str, ...] = ()
    """What may follow the words, one example a line at the end of `--help`."""
    common: tuple[str, ...] = ()
    """Flags of a run's settings that `--help` shows, if not those of `run`; the others are for
    `--help-all`."""
    group: str = "Extend"
    """The heading in `patchline --help`: Begin, Train, Use, Improve, Automate or Extend."""


@dataclass(frozen=True)
class WorkRequest:
    """What `patchline schedule create` was given for a tool's work."""

    value: str
    """The value of the flag."""
    images: Path | None
    out: Path | None
    columns: Mapping[str, Any]
    """Columns of a table of images, by the name of their setting, such as `label_column`."""


@dataclass(frozen=True)
class ToolWork:
    """Work of a tool that a schedule repeats, chosen by a flag of `patchline schedule create`."""

    kind: str
    """What `schedule list --json` calls it: `monitor`."""
    flag: str
    """`--monitor`; it takes a value."""
    help: str
    """The help text of the flag."""
    parameters: str
    """`package.module:function`, which checks a `WorkRequest` and returns the flow's parameters as
    JSON."""
    flow: str
    """`package.module:function` of the Prefect flow."""
    description: str
    """What it does, with the flow's parameters: `compares {data} with {model}`."""
    formerly: tuple[str, ...] = ()
    """Earlier places of the flow, as `package.module:function`; earlier schedules name it so."""


@dataclass(frozen=True)
class ToolEvent:
    """An event that a tool tells, and that notifications can name."""

    name: str
    """The event's name, such as `patchline.drift.detected`."""
    when: str
    """What has just happened."""
    resource: str
    """The id of what it is about; the part in capitals is a placeholder: `patchline.model.NAME`."""
    payload: tuple[str, ...]
    """The keys of the payload besides `sentence`; a key without a value is left out."""
    sentence: str
    """The message for people, with keys of the payload in braces."""
    is_default: bool = False
    """Whether a notification that names no event posts it, too."""
    flag: str = ""
    """A flag of `patchline schedule create` by which the event about a model starts training:
    `--on-drift`, with the model as its value."""
    flag_help: str = ""


@dataclass(frozen=True)
class ToolService:
    """A service of a tool that `patchline up` runs beside its servers if its flag is given."""

    name: str
    """What its log and messages call it: `model_server`."""
    title: str
    """What stands before its address in what `patchline up` prints: `Model`."""
    flag: str
    """`--serve`; it takes a value. `patchline up --json` has the address as `serve_url`."""
    help: str
    """The help text of the flag."""
    port_help: str
    """The help text of the flag that sets the first port to try, `--serve-port`."""
    program: str
    """`package.module:function`, called with the flag's value and a port in a process of its own,
    which is started again when it ends or no longer answers; it serves on 127.0.0.1."""
    check: str = ""
    """`package.module:function`, called with the flag's value before anything starts; it raises
    `ConfigError` for a wrong one."""
    health: str = "/readyz"
    """The path that it answers with 200 while it is well."""
    port: int = 8000
    """The first port to try, unless the flag is given."""

    @property
    def key(self) -> str:
        """The flag as a name: `serve`."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class ToolPlugin(_Plugin):
    """A tool: commands, scheduled work, events and services, which the core does not know."""

    summary: str
    commands: tuple[ToolCommand, ...] = ()
    work: tuple[ToolWork, ...] = ()
    events: tuple[ToolEvent, ...] = ()
    services: tuple[ToolService, ...] = ()
    python: Mapping[str, str] = field(default_factory=dict)
    """`package.module:function` of what `patchline.NAME` calls in Python, by this name."""
    paper: str = ""
    config_class: type[PluginConfig] = PluginConfig
    """Without settings: a tool's are the flags of its commands."""
