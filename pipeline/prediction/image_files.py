"""Find the images below folders, one at a time and in a fixed order, however many there are.

A folder's names are sorted as they are shown. Those of a very large folder are sorted in runs on
the disk, so that memory does not grow with the number of files.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.errors import DataError
from pipeline.files.atomic_files import storage_errors

_NAMES_IN_MEMORY = 100_000

Place = tuple[int, tuple[str, ...]]
"""Where an image stands in the order: the argument it belongs to, and the parts of its name."""


class ImageFile(NamedTuple):
    """A file to predict, or a folder that could not be opened."""

    argument: int
    """Which of the given paths it belongs to."""
    path: str
    name: str
    """The path as a table can hold it: bytes that are not UTF-8 are written out."""
    error: str = ""
    """Why a folder could not be opened."""

    @property
    def place(self) -> Place:
        """Where it stands in the order."""
        return place(self.argument, self.name)


class _Entry(NamedTuple):
    shown: str
    name: str
    is_folder: bool


class _Folder(NamedTuple):
    path: str
    entries: Iterator[_Entry]
    above: frozenset[tuple[int, int]]
    """Device and inode of this folder and of those above it."""


def place(argument: int, name: str) -> Place:
    """Return where the image of that name stands in the order."""
    return argument, Path(name).parts


def find_images(given: Sequence[Path], without: Sequence[Path] = ()) -> Iterator[ImageFile]:
    """Yield the given files and every file below the given folders, in order.

    Hidden files and folders are passed over, and so are the paths `without`. Linked folders are
    followed, but not in a circle.
    """
    left_out = {os.path.realpath(path) for path in without}
    for argument, path in enumerate(given):
        if path.is_dir():
            yield from _below(argument, str(path), left_out, in_order=True)
        else:
            yield ImageFile(argument, str(path), printable(str(path)))


def check_images(given: Sequence[Path], without: Sequence[Path] = ()) -> None:
    """Refuse paths that hold nothing to predict; no folder is walked further than its first file.

    Raises:
        DataError: if nothing was given, a path does not exist, or a folder holds no files.
    """
    if not given:
        raise DataError("No image was named. Give image files, or folders of them.")
    left_out = {os.path.realpath(path) for path in without}
    for path in given:
        if not path.exists():
            raise DataError(f"There is no file or folder {path}. Check the path.")
        if is_empty(path, left_out):
            raise DataError(
                f"The folder {path} holds no files. Put images in, or name another one."
            )


def is_empty(path: Path, left_out: Collection[str] = ()) -> bool:
    """Return whether a path is a folder without any file to predict.

    Args:
        path: a folder or a file.
        left_out: real paths of files and folders that do not count.
    """
    files = _below(0, str(path), set(left_out), in_order=False) if path.is_dir() else iter([path])
    return next(iter(files), None) is None


def count_images(given: Sequence[Path], without: Sequence[Path] = ()) -> int:
    """Return how many `find_images` would yield."""
    left_out = {os.path.realpath(path) for path in without}
    return sum(
        sum(1 for _ in _below(0, str(path), left_out, in_order=False)) if path.is_dir() else 1
        for path in given
    )


def printable(text: str) -> str:
    """Return text that Parquet can hold: bytes that are not UTF-8 are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _below(argument: int, root: str, left_out: set[str], *, in_order: bool) -> Iterator[ImageFile]:
    """Walk with a stack of our own: a folder may be deeper than Python's."""
    names = {Path(path).name for path in left_out}
    top = "" if root == "." else root
    stack = [_Folder("", iter([_Entry(top, top, is_folder=True)]), frozenset())]
    while stack:
        entry = next(stack[-1].entries, None)
        if entry is None:
            stack.pop()
            continue
        path = os.path.join(stack[-1].path, entry.name)  # noqa: PTH118 - text is faster than a Path
        if entry.name in names and os.path.realpath(path) in left_out:
            continue
        if not entry.is_folder:
            yield ImageFile(argument, path, printable(path))
            continue
        try:
            folder = _opened(path, stack[-1].above, in_order=in_order)
        except OSError as error:
            reason = f"the folder cannot be opened: {error.strerror}"
            yield ImageFile(argument, path, printable(path or root), reason)
            continue
        if folder is not None:
            stack.append(folder)


def _opened(path: str, above: frozenset[tuple[int, int]], *, in_order: bool) -> _Folder | None:
    """Return a folder's entries; none where a link leads back to a folder above."""
    try:
        status = Path(path).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return None
        entries = _entries(path or ".")
        return _Folder(path, _sorted(entries) if in_order else entries, above | {identity})
    except FileNotFoundError:
        return None  # removed since it was listed


def _entries(folder: str) -> Iterator[_Entry]:
    opened = os.scandir(folder)  # here, so that an error comes before the first entry

    def visible() -> Iterator[_Entry]:
        with opened:
            for entry in opened:
                if not entry.name.startswith(".") and (_is(entry.is_dir) or _is(entry.is_file)):
                    yield _Entry(printable(entry.name), entry.name, _is(entry.is_dir))

    return visible()


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # a link to itself
        return False


def _sorted(entries: Iterator[_Entry]) -> Iterator[_Entry]:
    """Sort in memory, or in runs on the disk where there are too many."""
    run = sorted(islice(entries, _NAMES_IN_MEMORY))
    if len(run) < _NAMES_IN_MEMORY:
        return iter(run)
    runs = []
    while run:
        runs.append(_spilled(run))
        run = sorted(islice(entries, _NAMES_IN_MEMORY))
    return heapq.merge(*(_read(file) for file in runs))


def _spilled(run: Iterable[_Entry]) -> IO[str]:
    with storage_errors(Path(tempfile.gettempdir())):
        file = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115 - `_read` closes it
        file.writelines(json.dumps(entry) + "\n" for entry in run)
        file.seek(0)
    return file


def _read(file: IO[str]) -> Iterator[_Entry]:
    with file:
        for line in file:
            yield _Entry(*json.loads(line))
