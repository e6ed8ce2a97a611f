"""A folder with one subfolder of images for each class.

    flowers/rose/1.jpg          or, with the splits given,   flowers/train/rose/1.jpg
    flowers/tulip/2.jpg                                      flowers/test/tulip/2.jpg

Files may be nested deeper in the class folder. Hidden files and folders are skipped, and those that
other programs leave beside images; linked folders are followed, and cycles are detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchline.plugin_api import (
    ARCHIVE_SUFFIXES,
    TABLE_SUFFIXES,
    DataError,
    DataSourcePlugin,
    IgnoredFiles,
    ImageListing,
    SourceContext,
    metadata_files,
    split_named,
    valid_name,
    visible_folders,
    walk_files,
)
from patchline.plugins.data_sources.class_folders import ClassFolderConfig, ClassFolders
from patchline.plugins.data_sources.source_files import example_images, existing_path

_LOOKED_AT = 4096
"""Bytes of a table in which the name of its column is searched for."""


class ImageFolderConfig(ClassFolderConfig):
    """Settings of the folder."""


class ImageFolder:
    """List the images below a folder, labelled by the name of their class folder."""

    def __init__(self, config: ImageFolderConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return every file below the folder; raise `DataError` if there is no class in it."""
        root = self._root()
        if self.context.needs_labels and self.context.rules.label == "auto":
            _ask_about_metadata(root)
        skipped: list[str] = []
        content = _content(root, self.context.ignored, skipped)
        if self.config.split_folders is not False:
            content = _around_splits(content)
        images, empty = content.images(
            self.config.split_folders, needs_labels=self.context.needs_labels
        )
        return ImageListing(
            name=valid_name(root.name),
            root=content.root,
            images=images,
            mirror_symmetric=self.config.mirror_symmetric,
            empty_classes=empty,
            ignored=skipped,
        )

    def _root(self) -> Path:
        root = existing_path(self.context.path, "the folder that holds the class folders", "folder")
        if not root.is_dir():
            raise DataError(
                f"{root} is not a folder. Pass the folder that holds the class folders, an archive "
                f"({', '.join(ARCHIVE_SUFFIXES[:4])}, …) or a table ({', '.join(TABLE_SUFFIXES)})."
            )
        return root.resolve()


def _ask_about_metadata(root: Path) -> None:
    """Ask which is right if a table, as the library `datasets` writes it, is beside the classes.

    Raises:
        DataError: if there is such a table.
    """
    for file in metadata_files(root):
        if file.name.startswith("metadata.") and _names_files(file):
            raise DataError(
                f"{root} is to be read as class folders, and holds {file.relative_to(root)} with "
                "facts about its images. Set --data.label top to learn the class folders, or "
                "--data.source table to learn the table's labels."
            )


def _names_files(file: Path) -> bool:
    """Return whether a table begins with the column that `datasets` asks for."""
    try:
        with file.open("rb") as opened:
            return b"file_name" in opened.read(_LOOKED_AT)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def _content(root: Path, ignored: IgnoredFiles, skipped: list[str]) -> ClassFolders:
    """Walk the folder, and collect what is skipped.

    Raises:
        DataError: if a part of it cannot be opened.
    """
    files = list(_whole(root, ignored, skipped))
    top = visible_folders(root, ignored)
    splits = ClassFolders(root, top, files).split_places.values()
    below = [
        f"{place}/{name}" for place in splits for name in visible_folders(root / place, ignored)
    ]
    return ClassFolders(root, [*top, *below], files)


def _around_splits(content: ClassFolders) -> ClassFolders:
    """Return the only folder in the root if it holds class folders in a folder for training.

    That is what unpacking an archive in a folder of its own leaves.
    """
    filled = content.filled(content.top)
    if len(filled) != 1 or split_named(filled[0]) or content.has_images_beside():
        return content
    inner = content.inside(filled[0])
    train = [name for name in inner.top if split_named(name) == "train"]
    beside = [name for name in inner.filled(inner.top) if not split_named(name)]
    return inner if inner.classes_in(train) and not beside else content


def _whole(root: Path, ignored: IgnoredFiles, skipped: list[str]) -> Iterator[str]:
    for found in walk_files(root, ignored=ignored, on_ignored=skipped.append):
        # a name without a suffix is most likely a folder on a disk that is not mounted
        if found.entry.is_symlink() and "." not in found.entry.name:
            target = Path(found.entry.path)
            if not target.exists():
                raise DataError(
                    f"{target} is a link to {target.readlink()}, which is not there, so its images "
                    "would be missing. Restore what it leads to, or remove the link."
                )
        yield found.path


def _write_example(folder: Path) -> str:
    """Write two classes of three small images and return the folder."""
    for number, (label, content) in enumerate(example_images()):
        (folder / label).mkdir(exist_ok=True)
        (folder / label / f"{number}.png").write_bytes(content)
    return str(folder)


plugin = DataSourcePlugin(
    summary="A folder with one subfolder of images for each class",
    paper="",
    config_class=ImageFolderConfig,
    build=ImageFolder,
    example=_write_example,
)
