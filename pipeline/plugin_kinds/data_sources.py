"""Data sources: where the images and their labels come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol

from patchline.pipeline.files.data_names import Split
from patchline.pipeline.files.ignored_files import IgnoredFiles
from patchline.pipeline.labels.reading_rules import ReadingRules
from patchline.pipeline.plugin_kinds.plugin_config import API_VERSION, C


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
    """Checks of `patchline.plugin_checks` that the plugin does not pass, each with the reason."""
    api_version: int = API_VERSION
