"""A folder with one subfolder of images for each class.

    flowers/rose/1.jpg          or, with the splits given,   flowers/train/rose/1.jpg
    flowers/tulip/2.jpg                                      flowers/test/tulip/2.jpg

Files may lie deeper than the class folder. Hidden files and folders are passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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
)

_SPLIT_NAMES: dict[str, Split] = {
    **{name: name for name in get_args(Split)},
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "testing": "test",
}


class ImageFolderConfig(PluginConfig):
    """Settings of the folder."""

    mirror_symmetric: bool = True
    """Whether a mirrored image still shows its class; false for text or left-right views."""


class ImageFolder:
    """List the images below a folder, labelled by the name of their class folder."""

    def __init__(self, config: ImageFolderConfig, context: SourceContext) -> None:
        self.config = config
        self.path = context.path

    def list_images(self) -> ImageListing:
        """Return every file below the folder; raise `DataError` when there is no class in it."""
        root = self._root()
        folders = _visible_folders(root)
        split_folders = [f for f in folders if f.name.lower() in _SPLIT_NAMES]
        has_splits = "train" in {_SPLIT_NAMES[f.name.lower()] for f in split_folders}
        images = [ListedImage(path=f.name, label="") for f in _visible_files(root)]
        if has_splits:
            for folder in split_folders:
                stray = [file.relative_to(root).as_posix() for file in _visible_files(folder)]
                images += [ListedImage(path=path, label="") for path in stray]
                images += _classes_below(folder, root, _SPLIT_NAMES[folder.name.lower()])
            others = [f for f in folders if f not in split_folders]
            images += [ListedImage(p, "") for f in others for p in _files_below(f, root)]
        else:
            images += _classes_below(root, root, None)
        if not any(image.label for image in images):
            meant = f" If it is one of the classes, name {root.parent}." if images else ""
            raise DataError(
                f"{root} has no class folder with files in it. Put the images of each class into "
                f"a folder named after the class.{meant}"
            )
        return ImageListing(
            name=_valid_name(root.name),
            root=root,
            images=images,
            mirror_symmetric=self.config.mirror_symmetric,
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


def _classes_below(folder: Path, root: Path, split: Split | None) -> Iterator[ListedImage]:
    for class_folder in _visible_folders(folder):
        for path in _files_below(class_folder, root):
            yield ListedImage(path=path, label=class_folder.name, split=split)


def _files_below(folder: Path, root: Path) -> Iterator[str]:
    for directory, subfolders, files in os.walk(folder):  # does not follow linked folders
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(directory, name).relative_to(root).as_posix()


def _visible_folders(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def _visible_files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))


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
