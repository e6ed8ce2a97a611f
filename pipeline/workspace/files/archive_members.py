"""Members of an archive: which are read, which could do harm, and what their names mean.

No name in an archive ever becomes the name of a file on disk. Members that could do harm, such as
links or paths that lead outside, are refused one by one; an archive that would unpack to much more
than its own size, or has too many members, is refused as a whole.

A zip declares only UTF-8, by a flag; without it, the standard says cp437, but the Finder of macOS
writes UTF-8, and Windows the code page of its language. A tar declares nothing but is nearly always
UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, Protocol, TypeVar

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.placeholders import size_of

MOST_MEMBERS = 2_000_000
"""Archives with more files and folders are refused."""
MOST_EXPANSION = 200
"""How many times its own size an archive may unpack to."""
ALWAYS_ALLOWED_BYTES = 1 << 30
"""Archives that unpack to at most 1 GiB may be compressed to any extent."""

_LONGEST_PATH = 4096
_DRIVE = re.compile(r"[A-Za-z]:")


class RefusedMember(NamedTuple):
    """A member of an archive that is not read."""

    path: str
    reason: str


class MemberError(ValueError):
    """A member of an archive cannot be read; the message is the reason."""


class Archive(Protocol):
    """An opened archive; several threads may read from it at the same time."""

    @property
    def paths(self) -> list[str]:
        """The visible files, with forward slashes, in the order of the archive."""
        ...

    @property
    def folders(self) -> list[str]:
        """The visible folders that it lists; folders with files need not be among them."""
        ...

    @property
    def refused(self) -> list[RefusedMember]:
        """The members that are not read."""
        ...

    @property
    def repeated(self) -> list[str]:
        """The files that are there several times; the last one is read, as unpacking does."""
        ...

    @property
    def note(self) -> str:
        """How names were read whose encoding is not declared; empty if all of them are."""
        ...

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes, as the archive states it."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it cannot be read."""
        ...


Place = TypeVar("Place")


class ListedArchive(Generic[Place]):
    """An archive whose members are found when it is opened.

    Args:
        file: the archive.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._places: dict[str, Place] = {}
        self._repeated: dict[str, None] = {}
        self._count = 0
        self.folders: list[str] = []
        self.refused: list[RefusedMember] = []

    @cached_property
    def paths(self) -> list[str]:
        """The visible files, with forward slashes, in the order of the archive."""
        return list(self._places)

    @cached_property
    def repeated(self) -> list[str]:
        """The files that are there several times; the last one is read, as unpacking does."""
        return list(self._repeated)

    def _place(self, path: str) -> Place:
        if path not in self._places:
            raise MemberError("is not in the archive")
        return self._places[path]

    def _add(self, name: str, place: Place, *, is_folder: bool, refusal: str | None) -> str | None:
        """Take note of a member; return the path of a file that may be read, None for others.

        Args:
            name: the name that the archive states.
            place: the place of the member in the archive.
            is_folder: whether the member is a folder.
            refusal: why a member of this kind is not read.

        Raises:
            DataError: if there are too many members.
        """
        self._count += 1
        if self._count > MOST_MEMBERS:
            raise too_many_members(self._file)
        path, reason = _check_path(name)
        if _is_hidden(path):
            return None
        reason = reason or refusal
        if reason:
            self.refused.append(RefusedMember(path, reason))
        elif path and is_folder:
            self.folders.append(path)
        elif path:
            if path in self._places:
                self._repeated[path] = None
            self._places[path] = place
            return path
        return None


def make_damage_error(file: Path, reason: str) -> DataError:
    """Return the error for an archive that is not whole."""
    said = " ".join(reason.split())[:200]
    return DataError(
        f"{file} is damaged, or is not an archive ({said}). Download or copy it again, or unpack "
        "it and pass the folder."
    )


def too_many_members(file: Path) -> DataError:
    """Return the error for an archive with an absurd number of members."""
    return DataError(
        f"{file} has more than {MOST_MEMBERS:,} files and folders, the most that are read from an "
        "archive. Unpack it and pass the folder."
    )


def check_expansion(file: Path, unpacked: int) -> None:
    """Refuse an archive that may be a decompression bomb.

    Args:
        file: the archive.
        unpacked: number of bytes that it unpacks to.

    Raises:
        DataError: if that is more than `MOST_EXPANSION` times its size.
    """
    own = size_of(file)
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MOST_EXPANSION * own):
        raise DataError(
            f"{file} has {own:,} bytes and unpacks to more than {MOST_EXPANSION} times as many, "
            "like a decompression bomb. If you trust it, unpack it and pass the folder."
        )


def _check_path(name: str) -> tuple[str, str | None]:
    """Return a member's path, and why it is refused."""
    if "\\" in name and "/" not in name:  # written on Windows
        name = name.replace("\\", "/")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    path = "/".join(parts)
    if len(path) > _LONGEST_PATH:
        return f"{path[:100]}…", f"its path has more than {_LONGEST_PATH} characters"
    if name.startswith("/") or _DRIVE.match(name):
        return path, "its path is absolute"
    if ".." in parts:
        return path, "its path leads outside the archive"
    return path, None


def _is_hidden(path: str) -> bool:
    """Return whether a member is hidden, or what macOS adds to an archive."""
    parts = path.split("/")
    hidden = any(part.startswith(".") and part != ".." for part in parts)
    return hidden or parts[0] == "__MACOSX"


_UTF_8, _STANDARD = "UTF-8", "cp437"
_USUAL = ("cp1252", "cp932", "gbk", "euc_kr", "cp1251")
"""Code pages of Windows in Western Europe, Japan, China, Korea and Eastern Europe."""


class ReadNames(NamedTuple):
    """The names of an archive's members."""

    names: Mapping[bytes, str]
    note: str
    """How they were read; empty without names that need an encoding."""


def read_names(file: Path, raw: Sequence[bytes], encoding: str | None) -> ReadNames:
    """Return names that do not declare their encoding.

    Args:
        file: the archive, for messages.
        raw: the names that are not ASCII.
        encoding: the encoding of all of them; None means UTF-8, or cp437 if one of them is not.

    Raises:
        DataError: if a name is not in the given encoding.
    """
    if not raw:
        return ReadNames({}, "")
    chosen = encoding or (_UTF_8 if _are(raw, _UTF_8) else _STANDARD)
    if not _are(raw, chosen):
        odd = next(name for name in raw if not _are([name], chosen))
        raise DataError(
            f"data.name_encoding is {encoding}, but the name {odd!r} in {file} is not in this "
            "encoding. Try another, or unpack the archive and pass the folder."
        )
    names = {name: name.decode(chosen) for name in raw}
    one = len(raw) == 1
    count = f"{len(raw):,} name{' does' if one else 's do'} not declare an encoding"
    was = f"{'was' if one else 'were'} read as {chosen}: '{names[raw[0]]}'"
    rest = "" if encoding or chosen == _UTF_8 else _others(raw)
    return ReadNames(names, f"{file.name}: {count} and {was}{rest}")


def _others(raw: Sequence[bytes]) -> str:
    """Return what the first name would be in other encodings in which all names can be read."""
    possible = {each: raw[0].decode(each) for each in _USUAL if _are(raw, each)}
    shown = ", ".join(f"'{name}' in {each}" for each, name in possible.items())
    return f" ({shown}); --data.name-encoding chooses another" if shown else ""


def _are(names: Sequence[bytes], encoding: str) -> bool:
    try:
        for name in names:
            name.decode(encoding)
    except UnicodeError:
        return False
    return True
