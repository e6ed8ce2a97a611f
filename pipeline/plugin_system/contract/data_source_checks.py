"""Conformance checks of a data source: it lists images and their labels without reading them."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from functools import cached_property
from pathlib import Path, PurePosixPath

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    decode_image,
    deep_values,
)
from patchline.pipeline.data.reading.image_root import is_file, root_image_bytes
from patchline.pipeline.errors import UserError
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckedPlugin,
    CheckError,
    checks,
    require,
)
from patchline.plugin_api import DataSource, ImageListing, ListedImage, SourceContext

_FEWEST_CLASSES = 2
_TYPED = dataclass(ImageListing, frozen=True, config=ConfigDict(strict=True))
"""A listing whose fields are checked for their types when it is built."""


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a data source, on the example that the plugin writes."""
    return checks(
        _CheckedSource(subject.plugin, subject.settings),
        lists_labelled_images,
        paths_stay_inside_the_root,
        lists_the_same_twice,
        images_can_be_decoded,
        refuses_what_does_not_exist,
    )


class _CheckedSource(CheckedPlugin):
    @cached_property
    def path(self) -> str | None:
        if self.plugin.example is None:
            return None
        example: str = self.plugin.example(Path(tempfile.mkdtemp(dir=self.folder)))
        return example

    def listing(self) -> ImageListing:
        return self.source(self.path).list_images()

    def source(self, path: str | None) -> DataSource:
        work_dir = self.folder / "work"
        work_dir.mkdir(exist_ok=True)
        source: DataSource = self.plugin.build(
            self.settings, SourceContext(path=path, work_dir=work_dir)
        )
        return source


def lists_labelled_images(subject: _CheckedSource) -> None:
    """The listing has a name, images of at least two classes, and values of the right types."""
    listing = subject.listing()
    require(
        isinstance(listing, ImageListing),
        f"list_images returns {type(listing).__name__}. Return an ImageListing.",
    )
    wrong = [image for image in listing.images if not isinstance(image, ListedImage)]
    require(not wrong, f"The listing contains {wrong[:1]}. Use ListedImage objects.")
    try:
        _TYPED(**{each.name: getattr(listing, each.name) for each in fields(ImageListing)})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckError(
            f"In the listing, {where} is {first['input']!r}. {first['msg']}."
        ) from error
    require(listing.name.strip(), "The listing has no name. Name it after the data.")
    try:
        RunConfig(name=listing.name)
    except ValueError as error:
        raise CheckError(
            f"The listing's name {listing.name!r} is not a valid model name. Use letters, "
            "digits, dots, dashes and underscores."
        ) from error
    sets = [image.labels for image in listing.images if image.labels is not None]
    require(
        len(sets) in (0, len(listing.images)),
        "Some images have a set of labels, and others have one. Give all images sets, or none.",
    )
    mixed = [image.label for image in listing.images if image.label and sets]
    require(not mixed, f"An image with a set of labels has the label {mixed[:1]}. Leave it out.")
    odd_sets = [each for each in sets if "" in each or len(set(each)) < len(each)]
    require(not odd_sets, f"The labels {odd_sets[:1]} are not a tuple of different names. Use one.")
    classes = {image.label for image in listing.images} - {""}
    classes |= {label for each in sets for label in each}
    require(
        len(classes) >= _FEWEST_CLASSES,
        f"The example has the classes {sorted(classes)}. At least two are required.",
    )


def paths_stay_inside_the_root(subject: _CheckedSource) -> None:
    """Each path is relative, uses forward slashes, exists, and is listed once."""
    listing = subject.listing()
    root = listing.root.resolve()
    paths = [image.path for image in listing.images]
    for path in paths:
        require(
            not PurePosixPath(path).is_absolute() and "\\" not in path,
            f"The path {path!r} must be relative and use forward slashes.",
        )
        require(
            (root / path).resolve().is_relative_to(root),
            f"The path {path!r} leads outside the listing's root.",
        )
        require(is_file(root, path), f"There is no file at the path {path!r}.")
    require(len(set(paths)) == len(paths), "A path is listed twice.")


def lists_the_same_twice(subject: _CheckedSource) -> None:
    """Listing twice gives the same images in the same order."""
    require(
        subject.listing().images == subject.listing().images,
        "Two listings of the same data differ. Sort the entries from the file system.",
    )


def images_can_be_decoded(subject: _CheckedSource) -> None:
    """The listed files are images that Patchline can read."""
    listing = subject.listing()
    for image in listing.images:
        try:
            with root_image_bytes(listing.root, image.path) as data, deep_values(data) as values:
                if values is None:  # what the others mean is decided for a whole data set
                    decode_image(data, channels=3)
        except UndecodableImageError as error:
            raise CheckError(f"{image.path!r} cannot be decoded: {error}.") from error


def refuses_what_does_not_exist(subject: _CheckedSource) -> None:
    """A path that does not exist raises an error with a clear message."""
    if subject.plugin.example is None:
        return  # the source needs no path
    try:
        subject.source(str(subject.folder / "no" / "such")).list_images()
    except UserError:
        return
    require(False, "A path that does not exist is treated as empty. Raise a DataError.")
