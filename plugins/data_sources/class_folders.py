"""Images in class folders: what the folders mean, in a folder on disk or in an archive.

    flowers/rose/1.jpg          or, with the splits given,   flowers/train/rose/1.jpg
    flowers/tulip/2.jpg                                      flowers/test/tulip/2.jpg

Nothing here opens a file: the names alone decide which folders are classes and which are splits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from patchline.plugin_api import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    DataError,
    ListedImage,
    PluginConfig,
    Split,
    split_named,
    unclear_level,
)

_NAMED_FOLDERS = 5


class ClassFolderConfig(PluginConfig):
    """Settings of images in class folders."""

    mirror_symmetric: bool | None = None
    """Whether a mirrored image still shows its class; false for text or left-right views; by
    default measured."""

    split_folders: bool | None = None
    """Whether folders named train, val and test are splits rather than classes; by default, their
    contents decide."""


@dataclass(frozen=True)
class ClassFolders:
    """The names of the folders and files below a root."""

    root: Path
    """The folder, or the place in an archive, that the names are relative to."""
    folders: list[str]
    """Paths of folders; those with files in them need not be listed."""
    files: list[str]
    """Paths of all files that are not skipped."""

    @cached_property
    def top(self) -> list[str]:
        """The sorted names of the folders directly in the root."""
        return sorted(self._with_files | {path.partition("/")[0] for path in self.folders})

    def inside(self, folder: str) -> ClassFolders:
        """Return what is below a folder of the root."""
        start = f"{folder}/"

        def cut(paths: list[str]) -> list[str]:
            return [path[len(start) :] for path in paths if path.startswith(start)]

        return ClassFolders(self.root / folder, cut(self.folders), cut(self.files))

    def images(
        self, split_folders: bool | None, *, needs_labels: bool = True
    ) -> tuple[list[ListedImage], list[str]]:
        """Return the labelled files, and the class folders without files.

        Args:
            split_folders: whether folders named like splits are splits; None to tell by their
                contents.
            needs_labels: whether the folders have to say what the classes are.

        Raises:
            DataError: if several readings are possible, or there is no class.
        """
        if split_folders if split_folders is not None else is_split(self):
            images, empty = _images_in_splits(self)
        else:
            images = [_in_class_folder(path) for path in self.files]
            empty = [name for name in self.top if name not in set(self.filled(self.top))]
        if not (images or needs_labels):
            raise DataError(f"{self.root} has no file. Name a folder with images.")
        if needs_labels and not any(image.label for image in images):
            raise self._without_classes()
        if needs_labels:
            self._check_level(images)
        return images, empty

    def _without_classes(self) -> DataError:
        """Return the error for a root without class folders, with the remedy for what it holds."""
        archives = sorted(name for name in self.files if name.lower().endswith(ARCHIVE_SUFFIXES))
        if archives:
            return DataError(
                f"{self.root} has no class folder with files in it, but {_quote(archives)}. To "
                "read an archive of class folders, pass its path; WebDataset shards have a label "
                "beside each image, such as 0001.cls or 0001.json."
            )
        if self.tables and self.root.is_dir():
            return DataError(
                f"{self.root} has no class folder with files in it, but {_quote(self.tables)}. "
                f"If a table holds the labels, pass it: {self.root / self.tables[0]}."
            )
        meant = f" If this folder is one of the classes, pass {self.root.parent}."
        may_be_meant = self.files and self.root.parent != Path.home()
        return DataError(
            f"{self.root} has no class folder with files in it. Put the images of each class "
            f"into a folder named after the class.{meant if may_be_meant else ''}"
        )

    @cached_property
    def tables(self) -> list[str]:
        """The sorted paths of the files that are named like tables."""
        return sorted(name for name in self.files if name.lower().endswith(TABLE_SUFFIXES))

    def _check_level(self, images: Collection[ListedImage]) -> None:
        """Raise `DataError` if other folders, or a table in the root, may say what the classes are.

        A table may where there is one class, or all names are the same word with another number.
        """
        question = unclear_level((image.label, image.path) for image in images if image.label)
        if question:
            raise DataError(
                f"It is not clear which folders of {self.root} are the classes: {question.reason}. "
                f"{question.remedy}."
            )
        names = sorted({image.label for image in images if image.label})
        tables = [name for name in self.tables if "/" not in name]
        alike = {name.rstrip("0123456789") for name in names}
        if tables and len(alike) == 1 and alike != {""}:
            raise DataError(
                f"It is not clear what the classes of {self.root} are: the folders "
                f"({_quote(names)}), or what a table beside them says ({_quote(tables)}). Pass "
                "the table with the labels, or set --data.label top if the folders are the classes."
            )

    def classes_in(self, splits: Collection[str]) -> set[str]:
        """Return the names of the class folders with files in any of some folders for splits."""
        starts = tuple(f"{self.split_places[name]}/" for name in splits)
        if not starts:
            return set()
        folders = {path.rpartition("/")[0] for path in self.files if path.startswith(starts)}
        return {found.rpartition("/")[2] for found in map(self.class_folder, folders) if found}

    def class_folder(self, folder: str) -> str:
        """Return the class folder of a split that a folder is or lies in; empty for others."""
        place = self.split_places.get(folder.partition("/")[0])
        if place is None or not folder.startswith(f"{place}/"):
            return ""
        return f"{place}/{folder[len(place) + 1 :].partition('/')[0]}"

    def loose_files_in(self, split: str) -> int:
        """Return the number of files directly in a folder for a split."""
        start = f"{self.split_places[split]}/"
        deep = start.count("/")
        return sum(path.count("/") == deep for path in self.files if path.startswith(start))

    def has_images_beside(self) -> bool:
        """Return whether a file directly in the root is named like an image."""
        beside = [path for path in self.files if "/" not in path]
        return any(f".{path.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES for path in beside)

    def filled(self, folders: Collection[str]) -> list[str]:
        """Return the folders that contain files, at any depth."""
        return [name for name in folders if name in self._with_files]

    @cached_property
    def split_places(self) -> dict[str, str]:
        """Where the class folders of each split are, by the name of its folder in the root.

        That is the folder itself, or `seg_train/seg_train` if it holds nothing but that.
        """
        return {name: self._innermost(name) for name in self.top if split_named(name)}

    def _innermost(self, folder: str) -> str:
        split = split_named(folder)
        while True:
            start = f"{folder}/"
            below = (path[len(start) :] for path in self.files if path.startswith(start))
            if any(split_named(path.partition("/")[0]) != split for path in below):
                return folder  # usually told by the first file
            content = self.inside(folder)
            filled = content.filled(content.top)
            if len(filled) != 1:
                return folder
            inner = content.inside(filled[0])
            if inner.has_images_beside() or not inner.filled(inner.top):
                return folder
            folder = f"{folder}/{filled[0]}"

    @cached_property
    def _with_files(self) -> set[str]:
        """The names of the folders directly in the root that contain files, at any depth."""
        return {path.partition("/")[0] for path in self.files if "/" in path}


def is_split(content: ClassFolders) -> bool:
    """Tell splits from classes of the same names; raise `DataError` if both are possible."""
    named = [name for name in content.top if split_named(name)]
    train = [name for name in named if split_named(name) == "train"]
    held_back = content.filled([name for name in named if name not in train])
    beside = content.filled([name for name in content.top if name not in named])
    trained = content.classes_in(train)
    if not train and not beside:
        if len(held_back) > 1 and not content.classes_in(held_back):
            others = f"like {_quote(held_back[1:])}, it has no class folders"
            raise _unclear(content, held_back[0], others)
        return _only_held_back(content, held_back)
    if not trained:
        if held_back and not beside and content.filled(train):
            raise _unclear(content, train[0], f"like {_quote(held_back)}, it has no class folders")
        return False
    if not beside or trained & content.classes_in(held_back):
        return True
    loose = sum(content.loose_files_in(name) for name in train)
    deeper = sum(path.partition("/")[0] in train for path in content.files) - loose
    if loose >= deeper:
        return False
    why = f"it has folders of its own, and {_quote(beside)} beside it"
    raise _unclear(content, train[0], why)


def _only_held_back(content: ClassFolders, held_back: list[str]) -> bool:
    """Return whether test or validation images were passed alone, as for an evaluation."""
    several = len(content.classes_in(held_back)) > 1
    return several and not any(content.loose_files_in(name) for name in held_back)


def _unclear(content: ClassFolders, train: str, why: str) -> DataError:
    table = f"Pass the table with the labels ({_quote(content.tables)}), or set"
    return DataError(
        f"'{train}' in {content.root} may be a split or a class: {why}. "
        f"{table if content.tables else 'Set'} split_folders below data.options in a config file: "
        "true for a split, false for a class."
    )


def _quote(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_FOLDERS} more" if len(names) > _NAMED_FOLDERS else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMED_FOLDERS]) + more


def _images_in_splits(content: ClassFolders) -> tuple[list[ListedImage], list[str]]:
    """Return the images with the splits of their folders, and the class folders without files."""
    named = {name: split_named(name) for name in content.top}
    splits: dict[str, Split] = {name: split for name, split in named.items() if split}
    meanings: dict[str, tuple[str, Split | None]] = {}  # of each folder with files, found once
    images = []
    for path in content.files:
        folder = path.rpartition("/")[0]
        meaning = meanings.get(folder)
        if meaning is None:
            found = content.class_folder(folder)
            label = found.rpartition("/")[2]
            meaning = (label, splits[folder.partition("/")[0]]) if label else ("", None)
            meanings[folder] = meaning
        images.append(ListedImage(path, *meaning))
    filled = set(map(content.class_folder, meanings))
    listed = set(map(content.class_folder, content.folders))
    return images, sorted(listed - filled - {""})


def _in_class_folder(path: str) -> ListedImage:
    folder, slash, _ = path.partition("/")
    return ListedImage(path, folder if slash else "")
