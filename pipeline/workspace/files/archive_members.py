"""Members of an archive: which are read, and which could do harm.

No name in an archive ever becomes the name of a file on disk. Members that could do harm, such as
links or paths that lead outside, are refused one by one; an archive that would unpack to much more
than its own size, or has too many members, is refused as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

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


class Listing:
    """Collects the names of an archive's members."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.folders: list[str] = []
        self.refused: list[RefusedMember] = []
        self._count = 0

    def accepted(self, name: str, *, is_folder: bool, refusal: str | None) -> str | None:
        """Return the path of a file that may be read; None for any other member.

        Args:
            name: as the archive states it.
            is_folder: whether the member is a folder.
            refusal: why a member of this kind is not read.

        Raises:
            DataError: if there are too many members.
        """
        self._count += 1
        if self._count > MOST_MEMBERS:
            raise too_many_members(self.file)
        path, reason = _checked_path(name)
        if _is_hidden(path):
            return None
        reason = reason or refusal
        if reason:
            self.refused.append(RefusedMember(path, reason))
        elif path and is_folder:
            self.folders.append(path)
        elif path:
            return path
        return None


def damaged(file: Path, reason: str) -> DataError:
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
        unpacked: bytes that it unpacks to.

    Raises:
        DataError: if that is more than `MOST_EXPANSION` times its size.
    """
    own = size_of(file)
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MOST_EXPANSION * own):
        raise DataError(
            f"{file} has {own:,} bytes and unpacks to more than {MOST_EXPANSION} times as many, "
            "like a decompression bomb. If you trust it, unpack it and pass the folder."
        )


def _checked_path(name: str) -> tuple[str, str | None]:
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
