"""Conformance checks of a data source: it lists images and their labels without reading them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    decode_image,
    deep_values,
)
from patchline.pipeline.data.reading.image_root import is_file, root_image_bytes
from patchline.pipeline.errors import UserError
from patchline.pipeline.plugin_system.contract.checks import CheckError, Rule, require
from patchline.plugin_api import (
    DataSource,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
    Split,
)

_FEWEST_CLASSES = 2


def _is_set(labels: Any) -> bool:
    names = isinstance(labels, tuple) and all(isinstance(each, str) and each for each in labels)
    return names and len(set(labels)) == len(labels)


class DataSourceChecks:
    """Conformance checks of a data source, on the example that the plugin writes."""

    def __init__(self, plugin: DataSourcePlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings
        # Shared by all checks and removed with this object: a source may write many files.
        self._folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._path: str | None = None

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [
            ("lists_labelled_images", self.lists_labelled_images),
            ("paths_stay_inside_the_root", self.paths_stay_inside_the_root),
            ("splits_and_groups_are_valid", self.splits_and_groups_are_valid),
            ("lists_the_same_twice", self.lists_the_same_twice),
            ("images_can_be_decoded", self.images_can_be_decoded),
            ("refuses_what_does_not_exist", self.refuses_what_does_not_exist),
        ]

    def refuse_settings(self) -> None:
        """Accept all settings."""

    def lists_labelled_images(self) -> None:
        """The listing has a name and images of at least two classes."""
        listing = self._listing()
        require(
            isinstance(listing, ImageListing),
            f"list_images returns {type(listing).__name__}. Return an ImageListing.",
        )
        require(listing.name.strip(), "The listing has no name. Name it after the data.")
        try:
            RunConfig(name=listing.name)
        except ValueError as error:
            raise CheckError(
                f"The listing's name {listing.name!r} is not a valid model name. Use letters, "
                "digits, dots, dashes and underscores."
            ) from error
        require(
            listing.mirror_symmetric is None or isinstance(listing.mirror_symmetric, bool),
            f"mirror_symmetric is {listing.mirror_symmetric!r}. Set it to True or False, or to "
            "None if that is not known.",
        )
        wrong = [image for image in listing.images if not isinstance(image, ListedImage)]
        require(not wrong, f"The listing contains {wrong[:1]}. Use ListedImage objects.")
        odd = [image.label for image in listing.images if not isinstance(image.label, str)]
        require(not odd, f"The label {odd[:1]} is not a string. Use a string.")
        empty = listing.empty_classes
        require(
            all(isinstance(name, str) for name in empty),
            f"empty_classes is {empty!r}. Use a list of class names.",
        )
        sets = [image.labels for image in listing.images if image.labels is not None]
        require(
            len(sets) in (0, len(listing.images)),
            "Some images have a set of labels, and others have one. Give all images sets, or none.",
        )
        mixed = [image.label for image in listing.images if image.label and sets]
        require(
            not mixed, f"An image with a set of labels has the label {mixed[:1]}. Leave it out."
        )
        odd_sets = [each for each in sets if not _is_set(each)]
        require(
            not odd_sets,
            f"The labels {odd_sets[:1]} are not a tuple of different names. Use one.",
        )
        classes = {image.label for image in listing.images} - {""}
        classes |= {label for each in sets for label in each}
        require(
            len(classes) >= _FEWEST_CLASSES,
            f"The example has the classes {sorted(classes)}. At least two are required.",
        )

    def paths_stay_inside_the_root(self) -> None:
        """Each path is relative, uses forward slashes, exists, and is listed once."""
        listing = self._listing()
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

    def splits_and_groups_are_valid(self) -> None:
        """A split is train, validation, test or None; a group is a string or None."""
        listing = self._listing()
        for image in listing.images:
            require(
                image.split in (None, *get_args(Split)),
                f"The split of {image.path!r} is {image.split!r}. Use one of "
                f"{', '.join(get_args(Split))} or None.",
            )
            require(
                image.group is None or isinstance(image.group, str),
                f"The group of {image.path!r} is {image.group!r}. Use a string or None.",
            )

    def lists_the_same_twice(self) -> None:
        """Listing twice gives the same images in the same order."""
        require(
            self._listing().images == self._listing().images,
            "Two listings of the same data differ. Sort the entries from the file system.",
        )

    def images_can_be_decoded(self) -> None:
        """The listed files are images that Patchline can read."""
        listing = self._listing()
        for image in listing.images:
            try:
                with (
                    root_image_bytes(listing.root, image.path) as data,
                    deep_values(data) as values,
                ):
                    if values is None:  # what the others mean is decided for a whole data set
                        decode_image(data, channels=3)
            except UndecodableImageError as error:
                raise CheckError(f"{image.path!r} cannot be decoded: {error}.") from error

    def refuses_what_does_not_exist(self) -> None:
        """A path that does not exist raises an error with a clear message."""
        if self.plugin.example is None:
            return  # the source needs no path
        missing = str(self._folder / "no" / "such")
        try:
            self._source(missing).list_images()
        except UserError:
            return
        require(False, "A path that does not exist is treated as empty. Raise a DataError.")

    def _listing(self) -> ImageListing:
        if self.plugin.example is not None and self._path is None:
            data = self._folder / "data"
            shutil.rmtree(data, ignore_errors=True)  # from a failed attempt
            data.mkdir()
            self._path = self.plugin.example(data)
        return self._source(self._path).list_images()

    def _source(self, path: str | None) -> DataSource:
        work_dir = self._folder / "work"
        work_dir.mkdir(exist_ok=True)
        return self.plugin.build(self.settings, SourceContext(path=path, work_dir=work_dir))
