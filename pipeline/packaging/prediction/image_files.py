"""Find the images below folders and in archives, one at a time and in a fixed order.

Only the names in one folder or archive are held in memory at a time, about 100 MiB for a million of
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace import cache, remote_data
from patchline.pipeline.workspace.address import check_spelling
from patchline.pipeline.workspace.files import workspace_folder
from patchline.pipeline.workspace.files.data_kinds import DataKind, data_kind, table_parts
from patchline.pipeline.workspace.files.data_names import ARCHIVE_SUFFIXES, may_be_image
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.pipeline.workspace.remote_data import file_state

if TYPE_CHECKING:
    import numpy as np

    from patchline.pipeline.packaging.packaged_model import PackagedModel
    from patchline.pipeline.workspace.files.archive_members import Archive

Place = tuple[int, tuple[str, ...]]
"""An image's position in the order: the index of its argument, and the parts of its name."""
_WITH_ARTICLE = {
    "table": "a table",
    "shards": "a set of shards",
    "coco": "an export of a labelling tool",
    "label_studio": "an export of a labelling tool",
}


class ImageFile(NamedTuple):
    """A file to predict, a member of an archive, or a folder that could not be opened."""

    argument: int
    """Index of the given path that it belongs to."""
    path: str
    name: str
    """The path as stored in a table: bytes that are not UTF-8 are escaped."""
    error: str = ""
    """Why a folder could not be opened, or a member is not read."""
    archive: str = ""
    """The archive that `path` is a member of, if it is one."""
    version: str = ""
    """Size and modification time of the file or the archive; empty if it cannot be read."""

    @property
    def place(self) -> Place:
        """Its position in the order."""
        return place(self.argument, self.name)

    def with_version(self) -> ImageFile:
        """Return the file with the version that it has now."""
        return self._replace(version=file_state(self.archive or self.path))


class _Entry(NamedTuple):
    name: str
    is_folder: bool


class _Folder(NamedTuple):
    path: str
    entries: Iterator[_Entry]
    above: frozenset[tuple[int, int]]
    """Device and inode of this folder and of its parents."""


def place(argument: int, name: str) -> Place:
    """Return the position in the order of the image with this name."""
    return argument, Path(name).parts


def find_images(
    given: Sequence[Path], without: Sequence[Path] = (), *, in_order: bool = True
) -> Iterator[ImageFile]:
    """Yield the given files and every file below the given folders and in archives, in order.

    Hidden files and folders, those that other programs leave beside images (see `folder_walk`),
    tables and texts, such as a table of labels, and the paths `without` are skipped. Linked folders
    are followed, except back to a parent.

    Args:
        given: paths or addresses.
        without: files and folders to skip.
        in_order: whether the files of a folder are sorted, which takes reading all names first.

    Raises:
        DataError: if an archive cannot be read.
    """
    left_out = {os.path.realpath(path) for path in without}
    for argument, path in enumerate(map(remote_data.local_image, given)):
        if path.is_dir():
            yield from _below(argument, str(path), left_out, in_order=in_order)
        elif is_archive(path):
            yield from _members(argument, path)
        else:
            yield ImageFile(argument, str(path), _name(str(path)))


def check_images(given: Sequence[Path], without: Sequence[Path] = ()) -> None:
    """Refuse paths without anything to predict; each folder is walked only to its first file.

    Raises:
        DataError: if no path was given, a path does not exist, a folder or an archive holds no
            images, an archive cannot be read, or the only path is a table or shards.
    """
    if not given:
        raise DataError("No images given. Give image files or folders of images.")
    given = [remote_data.local_image(path) for path in given]
    kind = data_kind(str(given[0]))
    if len(given) == 1 and kind in _WITH_ARTICLE and _holds_no_files(given[0], kind):
        remedy = "Unpack it and give the folder" if kind == "shards" else "Give the files it names"
        raise DataError(f"{given[0]} is {_WITH_ARTICLE[kind]}, not an image or a folder. {remedy}.")
    for path in given:
        if not path.exists():
            check_spelling(str(path), "The path")
            raise DataError(f"There is no file or folder {path}. Check the path.")
        if is_empty(path, without):
            what = "archive" if is_archive(path) else "folder"
            raise DataError(f"The {what} {path} holds no images. Add some, or give another {what}.")


def _holds_no_files(path: Path, kind: DataKind) -> bool:
    """Return whether a table, shards or an export is all that is there.

    A folder of images may have a table or an export beside them.
    """
    if path.is_dir():
        return kind == "shards" or bool(table_parts(path))
    return path.exists()


def is_empty(path: Path, left_out: Sequence[Path] = ()) -> bool:
    """Return whether a path is a folder or an archive without a file to predict.

    Args:
        path: a folder or a file.
        left_out: files and folders to ignore.
    """
    return next(find_images([path], left_out, in_order=False), None) is None


def count_images(given: Sequence[Path], without: Sequence[Path] = ()) -> int:
    """Return how many `find_images` would yield."""
    return sum(1 for _ in find_images(given, without, in_order=False))


def is_archive(path: Path) -> bool:
    """Return whether a path is a file that is named as an archive."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES) and path.is_file()


def pixels_of(model: PackagedModel, file: ImageFile) -> np.ndarray[Any, Any]:
    """Decode and resize a file for a model: uint8 (H, W, C).

    Raises:
        UndecodableImageError: with the reason, if it is not read, or is no image.
    """
    from patchline.pipeline.data.reading.decoding import UndecodableImageError
    from patchline.pipeline.data.reading.image_root import root_image_bytes

    if file.error:
        raise UndecodableImageError(file.error)
    if not file.archive:
        return model.pixels(Path(file.path))
    with root_image_bytes(Path(file.archive), file.path) as content:
        return model.pixels(content)


def _name(path: str) -> str:
    """Return what an image is called: its path, or its address."""
    return printable(remote_data.format_path(path))


def _members(argument: int, path: Path) -> list[ImageFile]:
    """Return the members of an archive, in order; those that are refused have an error."""
    file, archive = _open_archive(path)
    errors = [("", member) for member in _possible(archive.paths)]
    errors += [(member.reason, member.path) for member in archive.refused]
    members = [
        ImageFile(argument, member, _name(f"{path}/{member}"), error, str(file))
        for error, member in errors
    ]
    return sorted(members, key=lambda member: member.place)


def _possible(paths: Sequence[str]) -> list[str]:
    """Return the members of an archive that may be images."""
    return list(filter(may_be_image, DEFAULT_IGNORED.remaining(paths)))


def _open_archive(path: Path) -> tuple[Path, Archive]:
    """Open an archive, and return the file that it is read from.

    A compressed tar is decompressed once, where a run on it would look for it.

    Raises:
        DataError: if it is damaged, encrypted, or refused as a possible bomb.
    """
    from patchline.pipeline.workspace.files.archives import open_archive, readable_archive

    file = readable_archive(path, workspace_folder.place() / "sources" / "archive")
    cache.mark_used(file)
    return file, open_archive(file)


def _below(argument: int, root: str, left_out: set[str], *, in_order: bool) -> Iterator[ImageFile]:
    """Walk with an explicit stack, because folders may be nested deeper than Python recurses."""
    names = {Path(path).name for path in left_out}
    top = "" if root == "." else root
    stack = [_Folder("", iter([_Entry(top, is_folder=True)]), frozenset())]
    while stack:
        entry = next(stack[-1].entries, None)
        if entry is None:
            stack.pop()
            continue
        path = os.path.join(stack[-1].path, entry.name)  # noqa: PTH118 - text is faster than a Path
        if entry.name in names and os.path.realpath(path) in left_out:
            continue
        if not entry.is_folder:
            yield ImageFile(argument, path, _name(path))
            continue
        try:
            folder = _open(path, stack[-1].above, in_order=in_order)
        except OSError as error:
            reason = f"the folder cannot be opened: {error.strerror}"
            yield ImageFile(argument, path, _name(path or root), reason)
            continue
        if folder is not None:
            stack.append(folder)


def _open(path: str, above: frozenset[tuple[int, int]], *, in_order: bool) -> _Folder | None:
    """Return a folder's entries; None if a link leads back to a parent."""
    try:
        status = Path(path).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return None
        entries = _entries(path or ".")
        return _Folder(path, _sort(entries) if in_order else entries, above | {identity})
    except FileNotFoundError:
        return None  # deleted in the meantime


def _entries(folder: str) -> Iterator[_Entry]:
    opened = os.scandir(folder)  # here, so that an error is raised before the first entry

    def visible() -> Iterator[_Entry]:
        with opened:
            for entry in opened:
                if entry.name.startswith("."):
                    continue
                is_folder = _is(entry.is_dir)
                if not is_folder and not (may_be_image(entry.name) and _is(entry.is_file)):
                    continue
                if not DEFAULT_IGNORED.skips(entry.name, entry.name, is_folder=is_folder):
                    yield _Entry(entry.name, is_folder)

    return visible()


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # a link to itself
        return False


def _sort(entries: Iterator[_Entry]) -> Iterator[_Entry]:
    """Sort a folder's entries by their printable names.

    Plain strings and a set of the folders take a third of the memory of sorted entries.
    """
    folders: set[str] = set()
    names: list[str] = []
    for name, is_folder in entries:
        names.append(name)
        if is_folder:
            folders.add(name)
    names.sort(key=printable)
    return (_Entry(name, name in folders) for name in names)
