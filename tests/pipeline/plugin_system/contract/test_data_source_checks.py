"""Each check of a data source finds the fault that it is there for, and blames no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
)
from tests.pipeline.plugin_system.contract.faults import (
    OF_SETTINGS,
    Fault,
    assert_found,
    failures,
    names_of,
)


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
_SPLITS = "splits_and_groups_are_valid"
_TWICE = "lists_the_same_twice"
_DECODES = "images_can_be_decoded"
_MISSING = "refuses_what_does_not_exist"
_ALL = dict.fromkeys(set(names_of(SOUND)) - OF_SETTINGS, "")
FAULTS = [
    Fault(
        "a list instead of a listing",
        _plugin(_changing(lambda listing: listing.images)),
        {
            **{name: "" for name in _ALL if name != _MISSING},
            _LISTS: "list_images returns list. Return an ImageListing.",
        },
    ),
    Fault(
        "without a name",
        _plugin(_changing(lambda listing: replace(listing, name=" "))),
        {_LISTS: "The listing has no name. Name it after the data."},
    ),
    Fault(
        "pairs",
        _plugin(_changing(_listing_of_pairs)),
        {
            _LISTS: "The listing contains [('dark_1.png', 'dark')]. Use ListedImage objects.",
            **dict.fromkeys((_PATHS, _SPLITS, _DECODES), "AttributeError"),
        },
    ),
    Fault(
        "one class",
        _plugin(_changing(lambda listing: replace(listing, images=listing.images[:2]))),
        {_LISTS: "The example has the classes ['dark']. At least two are required."},
    ),
    Fault(
        "no images",
        _plugin(_changing(lambda listing: replace(listing, images=[]))),
        {_LISTS: "The example has the classes []. At least two are required."},
    ),
    Fault("an absolute path", _plugin(_changing(_absolute)), {_PATHS: "must be relative and use"}),
    Fault(
        "a path with a backslash",
        _plugin(_changing(_first(path="dark\\1.png"))),
        {_PATHS: "must be relative and use forward slashes.", _DECODES: ""},
    ),
    Fault(
        "a path that climbs",
        _plugin(_changing(_climbing)),
        {_PATHS: "The path '../data/dark_1.png' leads outside the listing's root."},
    ),
    Fault(
        "a file that is not there",
        _plugin(_changing(_first(path="dark_0.png"))),
        {
            _PATHS: "There is no file at the path 'dark_0.png'.",
            _DECODES: "cannot be read: No such file or directory",
        },
    ),
    Fault(
        "a path twice",
        _plugin(_changing(_first(path="dark_2.png"))),
        {_PATHS: "A path is listed twice."},
    ),
    Fault(
        "a split of its own",
        _plugin(_changing(_first(split="val"))),
        {
            _SPLITS: "The split of 'dark_1.png' is 'val'. Use one of train, validation, test or "
            "None."
        },
    ),
    Fault(
        "a number as group",
        _plugin(_changing(_first(group=7))),
        {_SPLITS: "The group of 'dark_1.png' is 7. Use a string or None."},
    ),
    Fault(
        "another order each time",
        _plugin(_changing(_alternating())),
        {_TWICE: "Two listings of the same data differ. Sort the entries from the file system."},
    ),
    Fault(
        "a damaged image",
        _plugin(example=_damaged_example),
        {_DECODES: "'light_0.png' cannot be decoded: "},
    ),
    Fault(
        "a missing folder is empty",
        _plugin(Lenient),
        {_MISSING: "A path that does not exist is treated as empty. Raise a DataError."},
    ),
    Fault(
        "a missing folder is a crash",
        _plugin(Crashes),
        {_MISSING: "It raised FileNotFoundError: "},
    ),
    Fault(
        "fails to build",
        _plugin(lambda *_: 1 / 0),
        {**_ALL, _LISTS: "It raised ZeroDivisionError: division by zero"},
    ),
    Fault(
        "an example that fails",
        _plugin(example=_failing_example),
        {
            **{name: "" for name in _ALL if name != _MISSING},
            _LISTS: "It raised RuntimeError: no network",
        },
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_in_its_own_words(fault: Fault) -> None:
    """The checks that a fault breaks fail and name it, and no other does."""
    assert_found(fault, names_of(SOUND))


def test_a_sound_data_source_passes() -> None:
    """The data source that the faulty ones derive from keeps the contract."""
    assert failures(SOUND, names_of(SOUND)) == {}


def test_every_check_is_broken_by_a_fault() -> None:
    """No check of a data source is without a plugin that breaks it in words of its own."""
    found = {name for fault in FAULTS for name, words in fault.failing.items() if words}
    assert found == set(names_of(SOUND)) - OF_SETTINGS
