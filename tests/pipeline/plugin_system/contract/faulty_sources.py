"""Faulty data sources, each with its check and a part of what the check says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
)


class Source:
    """Files whose names begin with their class."""

    def __init__(self, _config: PluginConfig, context: SourceContext) -> None:
        self.root = Path(context.path or "")

    def list_images(self) -> Any:
        """Return the files below the path."""
        if not self.root.is_dir():
            raise DataError(f"There is no folder {self.root}. Check the path.")
        return self.listed()

    def listed(self) -> ImageListing:
        """Return what is in the folder, which exists."""
        names = sorted(file.name for file in self.root.iterdir())
        images = [ListedImage(name, label=name.partition("_")[0]) for name in names]
        return ImageListing("marks", self.root, images)


class Lenient(Source):
    def list_images(self) -> ImageListing:
        return self.listed() if self.root.is_dir() else ImageListing("marks", self.root)


class Crashes(Source):
    def list_images(self) -> ImageListing:
        return self.listed()


def _changed(change: Callable[[ImageListing], Any]) -> Any:
    """Return a plugin whose listing is changed."""

    class Changed(Source):
        def list_images(self) -> Any:
            return change(super().list_images())

    return _plugin(Changed)


def _with(**fields: Any) -> Any:
    """Return a plugin whose listing has other fields."""
    return _changed(lambda listing: replace(listing, **fields))


def _first(**fields: Any) -> Any:
    """Return a plugin whose first image has other fields."""
    return _changed(
        lambda listing: replace(
            listing, images=[listing.images[0]._replace(**fields), *listing.images[1:]]
        )
    )


def _all(change: Callable[[ListedImage], Any]) -> Any:
    """Return a plugin whose images are changed."""
    return _changed(lambda listing: replace(listing, images=[*map(change, listing.images)]))


def _example(folder: Path) -> str:
    for name, grey in (("dark_1", 10), ("dark_2", 20), ("light_1", 200), ("light_2", 210)):
        Image.new("L", (8, 8), grey).save(folder / f"{name}.png")
    return str(folder)


def _damaged_example(folder: Path) -> str:
    (folder / "light_0.png").write_bytes(b"no image")
    return _example(folder)


def _failing_example(_: Path) -> str:
    raise RuntimeError("no network")


def _plugin(build: Callable[..., Any] = Source, example: Callable[[Path], str] = _example) -> Any:
    return DataSourcePlugin("For the tests", "", PluginConfig, build, example)


_orders = iter([1, -1] * 9)
_LISTS, _PATHS = "lists_labelled_images", "paths_stay_inside_the_root"
_MISSING = "refuses_what_does_not_exist"
FAULTS = {
    "a list instead of a listing": (
        _changed(lambda listing: listing.images), _LISTS, "returns list. Return an ImageListing."
    ),
    "pairs": (_all(tuple), _LISTS, "Use ListedImage objects."),
    "without a name": (_with(name=" "), _LISTS, "The listing has no name."),
    "no valid name": (_with(name="my data: v1/2"), _LISTS, "is not a valid model name."),
    "a word as a switch": (_with(mirror_symmetric="no"), _LISTS, "mirror_symmetric is 'no'"),
    "one class": (_all(lambda image: image._replace(label="dark")), _LISTS, "classes ['dark']."),
    "no images": (_with(images=[]), _LISTS, "has the classes []."),
    "numbers as labels": (_first(label=7), _LISTS, "images.0.label is 7."),
    "a split of its own": (_first(split="val"), _LISTS, "images.0.split is 'val'."),
    "a set of labels for one image": (
        _first(label="", labels=("dark",)), _LISTS, "a set of labels, and others have one."
    ),
    "a set and a label": (
        _all(lambda image: image._replace(labels=("a", "b"))), _LISTS, "has the label ['dark']"
    ),
    "a label twice": (
        _all(lambda image: image._replace(label="", labels=("a", "a"))), _LISTS, "different names."
    ),
    "fails to build": (_plugin(lambda *_: 1 / 0), _LISTS, "It raised ZeroDivisionError"),
    "an example that fails": (_plugin(example=_failing_example), _LISTS, "RuntimeError: no net"),
    "an absolute path": (_first(path="/dark_1.png"), _PATHS, "must be relative and use"),
    "a backslash": (_first(path="dark\\1.png"), _PATHS, "must be relative and use"),
    "a path that climbs": (_first(path="../dark_1.png"), _PATHS, "outside the listing's root."),
    "a file that is not there": (_first(path="dark_0.png"), _PATHS, "There is no file at the"),
    "a path twice": (_first(path="dark_2.png"), _PATHS, "A path is listed twice."),
    "another order each time": (
        _changed(lambda listing: replace(listing, images=listing.images[:: next(_orders)])),
        "lists_the_same_twice",
        "Two listings of the same data differ.",
    ),
    "a damaged image": (
        _plugin(example=_damaged_example), "images_can_be_decoded", "'light_0.png' cannot be"
    ),
    "a missing folder is empty": (_plugin(Lenient), _MISSING, "Raise a DataError."),
    "a missing folder is a crash": (_plugin(Crashes), _MISSING, "It raised FileNotFoundError: "),
}  # fmt: skip
