"""A folder with one subfolder of images for each class.

    flowers/rose/1.jpg          or, with the splits given,   flowers/train/rose/1.jpg
    flowers/tulip/2.jpg                                      flowers/test/tulip/2.jpg

Files may be nested deeper in the class folder. Hidden files and folders are skipped; linked folders
are followed, and cycles are detected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pipeline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
    Split,
    visible_folders,
    walk_files,
)

_SPLIT_NAMES: dict[str, Split] = {
    **{name: name for name in get_args(Split)},
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "testing": "test",
}
_NAMED_FOLDERS = 5


class ImageFolderConfig(PluginConfig):
    """Settings of the folder."""

    mirror_symmetric: bool = True
    """Whether a mirrored image still shows its class; false for text or left-right views."""

    split_folders: bool | None = None
    """Whether folders named train, val and test are splits rather than classes; by default, their
    contents decide."""


class ImageFolder:
    """List the images below a folder, labelled by the name of their class folder."""

    def __init__(self, config: ImageFolderConfig, context: SourceContext) -> None:
        self.config = config
        self.path = context.path
        self.needs_labels = context.needs_labels

    def list_images(self) -> ImageListing:
        """Return every file below the folder; raise `DataError` if there is no class in it."""
        root = self._root()
        content = _Content.of(root)
        given = self.config.split_folders
        if given if given is not None else _is_split(content):
            images, empty = _images_in_splits(content)
        else:
            images = [_in_class_folder(path) for path in content.files]
            filled = {path.partition("/")[0] for path in content.files if "/" in path}
            empty = [name for name in content.folders if name not in filled]
        if not (images or self.needs_labels):
            raise DataError(f"{root} has no file. Name a folder with images.")
        if self.needs_labels and not any(image.label for image in images):
            meant = f" If this folder is one of the classes, pass {root.parent}." if images else ""
            raise DataError(
                f"{root} has no class folder with files in it. Put the images of each class into "
                f"a folder named after the class.{meant}"
            )
        return ImageListing(
            name=_valid_name(root.name),
            root=root,
            images=images,
            mirror_symmetric=self.config.mirror_symmetric,
            empty_classes=empty,
        )

    def _root(self) -> Path:
        if self.path is None:
            raise DataError("data.path is missing. Name the folder that holds the class folders.")
        root = Path(self.path).expanduser()
        if not root.exists():
            raise DataError(f"There is no folder {root}. Check the path.")
        if not root.is_dir():
            raise DataError(
                f"{root} is not a folder. Name the folder that holds the class folders."
            )
        return root.resolve()


@dataclass(frozen=True)
class _Content:
    """The names of the folders and files in the folder; no file is opened."""

    root: Path
    folders: list[str]
    """Names of the folders directly in it."""
    files: list[str]
    """Paths of all files below it."""

    @classmethod
    def of(cls, root: Path) -> _Content:
        """Walk the folder; raise `DataError` if a part of it cannot be opened."""
        return cls(root, visible_folders(root), list(_whole(root)))

    def classes_in(self, folders: Collection[str]) -> set[str]:
        """Return the names of the folders with files directly in any of some folders."""
        parts = (path.split("/") for path in self.files)
        return {part[1] for part in parts if len(part) > 2 and part[0] in folders}  # noqa: PLR2004 - folder, class, file

    def loose_files_in(self, folder: str) -> int:
        """Return the number of files directly in a folder."""
        return sum(path.count("/") == 1 for path in self.files if path.startswith(f"{folder}/"))

    def filled(self, folders: Collection[str]) -> list[str]:
        """Return the folders that contain files, at any depth."""
        there = {path.partition("/")[0] for path in self.files if "/" in path}
        return [name for name in folders if name in there]


def _whole(root: Path) -> Iterator[str]:
    for found in walk_files(root):
        # a name without a suffix is most likely a folder on a disk that is not mounted
        if found.entry.is_symlink() and "." not in found.entry.name:
            target = Path(found.entry.path)
            if not target.exists():
                raise DataError(
                    f"{target} is a link to {target.readlink()}, which is not there, so its images "
                    "would be missing. Restore what it leads to, or remove the link."
                )
        yield found.path


def _is_split(content: _Content) -> bool:
    """Tell splits from classes of the same names; raise `DataError` if both are possible."""
    named = [name for name in content.folders if name.lower() in _SPLIT_NAMES]
    train = [name for name in named if _SPLIT_NAMES[name.lower()] == "train"]
    held_back = content.filled([name for name in named if name not in train])
    beside = content.filled([name for name in content.folders if name not in named])
    trained = content.classes_in(train)
    if not trained:
        if held_back and not beside and content.filled(train):
            raise _unclear(content, train[0], f"like {_quoted(held_back)}, it has no class folders")
        return False
    if not beside or trained & content.classes_in(held_back):
        return True
    loose = sum(content.loose_files_in(name) for name in train)
    deeper = sum(path.partition("/")[0] in train for path in content.files) - loose
    if loose >= deeper:
        return False
    why = f"it has folders of its own, and {_quoted(beside)} beside it"
    raise _unclear(content, train[0], why)


def _unclear(content: _Content, train: str, why: str) -> DataError:
    return DataError(
        f"'{train}' in {content.root} may be a split or a class: {why}. Set "
        "split_folders below data.options in a config file: true for a split, false for a class."
    )


def _quoted(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_FOLDERS} more" if len(names) > _NAMED_FOLDERS else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMED_FOLDERS]) + more


def _images_in_splits(content: _Content) -> tuple[list[ListedImage], list[str]]:
    """Return the images with the splits of their folders, and the class folders without files."""
    splits = {
        name: _SPLIT_NAMES[name.lower()] for name in content.folders if name.lower() in _SPLIT_NAMES
    }
    images, filled = [], set()
    for path in content.files:
        top, _, rest = path.partition("/")
        label, _, file = rest.partition("/")
        if top in splits and file:
            images.append(ListedImage(path, label, splits[top]))
            filled.add(f"{top}/{label}")
        else:
            images.append(ListedImage(path, ""))
    folders = [f"{top}/{name}" for top in splits for name in visible_folders(content.root / top)]
    return images, [folder for folder in folders if folder not in filled]


def _in_class_folder(path: str) -> ListedImage:
    folder, slash, _ = path.partition("/")
    return ListedImage(path, folder if slash else "")


def _valid_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:100] or "images"


def _write_example(folder: Path) -> str:
    """Write two classes of three small images and return the folder."""
    from PIL import Image

    for label, colour in (("dark", 60), ("light", 200)):
        (folder / label).mkdir()
        for number in range(3):
            image = Image.new("RGB", (24, 16), (colour, colour, 80 * number))
            image.save(folder / label / f"{number}.png")
    return str(folder)


plugin = DataSourcePlugin(
    summary="A folder with one subfolder of images for each class",
    paper="",
    config_class=ImageFolderConfig,
    build=ImageFolder,
    example=_write_example,
)
