"""Faulty data sources, each for the check that finds it."""

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
from tests.pipeline.plugin_system.contract.faults import Fault


class NoSettings(PluginConfig):
    """There is nothing to set."""


class Sound:
    """A data source without fault: files whose names begin with their class."""

    def __init__(self, _config: NoSettings, context: SourceContext) -> None:
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


def _changing(change: Callable[[ImageListing], Any]) -> type[Sound]:
    """Return a data source whose listing is changed."""

    class Changed(Sound):
        def list_images(self) -> Any:
            return change(super().list_images())

    return Changed


def _first(**fields: Any) -> Callable[[ImageListing], ImageListing]:
    """Return a change of the first image."""

    def change(listing: ImageListing) -> ImageListing:
        first, *others = listing.images
        return replace(listing, images=[first._replace(**fields), *others])

    return change


def _absolute(listing: ImageListing) -> ImageListing:
    return _first(path=str(listing.root / listing.images[0].path))(listing)


def _climbing(listing: ImageListing) -> ImageListing:
    images = [image._replace(path=f"../data/{image.path}") for image in listing.images]
    return replace(listing, images=images, root=listing.root.parent / "work")


def _alternating() -> Callable[[ImageListing], ImageListing]:
    calls = []

    def change(listing: ImageListing) -> ImageListing:
        calls.append(1)
        return replace(listing, images=listing.images[:: -1 if len(calls) % 2 else 1])

    return change


def _listing_of_pairs(listing: ImageListing) -> ImageListing:
    images: Any = [(image.path, image.label) for image in listing.images]
    return replace(listing, images=images)


class Lenient(Sound):
    """Takes a folder that does not exist as an empty one."""

    def list_images(self) -> ImageListing:
        return self.listed() if self.root.is_dir() else ImageListing("marks", self.root)


class Crashes(Sound):
    """Leaves a missing folder to the operating system."""

    def list_images(self) -> ImageListing:
        return self.listed()


def _example(folder: Path) -> str:
    for name, colour in (("dark_1", 10), ("dark_2", 20), ("light_1", 200), ("light_2", 210)):
        Image.new("RGB", (8, 8), (colour, colour, colour)).save(folder / f"{name}.png")
    return str(folder)


def _damaged_example(folder: Path) -> str:
    (folder / "light_0.png").write_bytes(b"no image")
    return _example(folder)


def _failing_example(_: Path) -> str:
    raise RuntimeError("no network")


def _plugin(
    build: Callable[..., Any] = Sound, example: Callable[[Path], str] | None = _example
) -> DataSourcePlugin[Any]:
    return DataSourcePlugin(
        summary="For the tests", paper="", config_class=NoSettings, build=build, example=example
    )


SOUND = _plugin()
_LISTS = "lists_labelled_images"
_PATHS = "paths_stay_inside_the_root"
_TWICE = "lists_the_same_twice"
_DECODES = "images_can_be_decoded"
_MISSING = "refuses_what_does_not_exist"
FAULTS = [
    Fault(
        "a list instead of a listing",
        _plugin(_changing(lambda listing: listing.images)),
        _LISTS,
        "list_images returns list. Return an ImageListing.",
    ),
    Fault(
        "without a name",
        _plugin(_changing(lambda listing: replace(listing, name=" "))),
        _LISTS,
        "The listing has no name. Name it after the data.",
    ),
    Fault(
        "pairs",
        _plugin(_changing(_listing_of_pairs)),
        _LISTS,
        "The listing contains [('dark_1.png', 'dark')]. Use ListedImage objects.",
    ),
    Fault(
        "one class",
        _plugin(_changing(lambda listing: replace(listing, images=listing.images[:2]))),
        _LISTS,
        "The example has the classes ['dark']. At least two are required.",
    ),
    Fault(
        "no images",
        _plugin(_changing(lambda listing: replace(listing, images=[]))),
        _LISTS,
        "The example has the classes []. At least two are required.",
    ),
    Fault("an absolute path", _plugin(_changing(_absolute)), _PATHS, "must be relative and use"),
    Fault(
        "a path with a backslash",
        _plugin(_changing(_first(path="dark\\1.png"))),
        _PATHS,
        "must be relative and use forward slashes.",
    ),
    Fault(
        "a path that climbs",
        _plugin(_changing(_climbing)),
        _PATHS,
        "The path '../data/dark_1.png' leads outside the listing's root.",
    ),
    Fault(
        "a file that is not there",
        _plugin(_changing(_first(path="dark_0.png"))),
        _PATHS,
        "There is no file at the path 'dark_0.png'.",
    ),
    Fault(
        "a path twice",
        _plugin(_changing(_first(path="dark_2.png"))),
        _PATHS,
        "A path is listed twice.",
    ),
    Fault(
        "a split of its own",
        _plugin(_changing(_first(split="val"))),
        _LISTS,
        "In the listing, images.0.split is 'val'. Input should be 'train', ",
    ),
    Fault(
        "a number as group",
        _plugin(_changing(_first(group=7))),
        _LISTS,
        "In the listing, images.0.group is 7. Input should be a valid string.",
    ),
    Fault(
        "a set of labels for one image",
        _plugin(_changing(_first(label="", labels=("dark",)))),
        _LISTS,
        "Some images have a set of labels, and others have one.",
    ),
    Fault(
        "another order each time",
        _plugin(_changing(_alternating())),
        _TWICE,
        "Two listings of the same data differ. Sort the entries from the file system.",
    ),
    Fault(
        "a damaged image",
        _plugin(example=_damaged_example),
        _DECODES,
        "'light_0.png' cannot be decoded: ",
    ),
    Fault(
        "a missing folder is empty",
        _plugin(Lenient),
        _MISSING,
        "A path that does not exist is treated as empty. Raise a DataError.",
    ),
    Fault(
        "a missing folder is a crash",
        _plugin(Crashes),
        _MISSING,
        "It raised FileNotFoundError: ",
    ),
    Fault(
        "fails to build",
        _plugin(lambda *_: 1 / 0),
        _LISTS,
        "It raised ZeroDivisionError: division by zero",
    ),
    Fault(
        "an example that fails",
        _plugin(example=_failing_example),
        _LISTS,
        "It raised RuntimeError: no network",
    ),
]
