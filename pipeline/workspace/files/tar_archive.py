"""Uncompressed tar archives, read in place."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.archive_members import (
    Listing,
    MemberError,
    check_expansion,
    damaged,
)
from patchline.pipeline.workspace.files.member_names import read_names
from patchline.pipeline.workspace.files.shared_file import OpenFile

_HEADER_BYTES = 1 << 20
"""The most that is read at once for a header; more is an attempt to fill the memory."""
_MAGIC_AT = 257
"""Of a header, where its format is named."""
HEADER_ERRORS = (
    tarfile.TarError, OSError, ValueError, EOFError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What `tarfile` raises for headers that are damaged or made to do harm."""


class _MemberPlace(NamedTuple):
    offset: int
    size: int


class ArchiveHeaders(io.RawIOBase):
    """What `tarfile` reads of an archive; it refuses headers that claim an absurd size."""

    def __init__(self, part: io.IOBase) -> None:
        super().__init__()
        self._part: Any = part

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return bytes(self._part.read(size) or b"")

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move the position."""
        return int(self._part.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._part.tell())


class TarArchive:
    """A tar archive; its headers are read once to find the members.

    Args:
        file: the archive.
        encoding: of the names that are not UTF-8; by default, they are escaped.
    """

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self._shared = OpenFile(file)
        self._members: dict[str, _MemberPlace] = {}
        listing = Listing(file)
        unpacked, odd, repeated = 0, list[bytes](), dict[str, None]()
        for info in _infos(file, self._shared):
            name = info.name
            if raw := _undecoded(name):
                odd.append(raw)
                name = read_names(file, [raw], encoding).names[raw] if encoding else name
            path = listing.accepted(name, is_folder=info.isdir(), refusal=_refusal(info))
            if path is None:
                continue
            if info.offset_data + info.size > self._shared.size:
                raise damaged(file, f"it ends in the middle of {path}")
            unpacked += info.size
            if path in self._members:
                repeated[path] = None
            self._members[path] = _MemberPlace(info.offset_data, info.size)
        check_expansion(file, unpacked)
        self.paths, self.repeated = list(self._members), list(repeated)
        self.folders, self.refused = listing.folders, listing.refused
        self.note = _note(file, odd, encoding) if odd else ""

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return self._place(path).size

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it is not in the archive."""
        place = self._place(path)
        return io.BufferedReader(self._shared.part(place.offset, place.size))

    def _place(self, path: str) -> _MemberPlace:
        if path not in self._members:
            raise MemberError("is not in the archive")
        return self._members[path]


def _undecoded(name: str) -> bytes:
    """Return a name that is not UTF-8 as it is written; nothing for others."""
    if name.isascii():
        return b""
    raw = name.encode("utf-8", "surrogateescape")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw
    return b""


def _note(file: Path, odd: list[bytes], encoding: str | None) -> str:
    """Return how the names that are not UTF-8 were read."""
    one = len(odd) == 1
    count = f"{file.name}: {len(odd):,} name{' is' if one else 's are'} not UTF-8"
    if encoding:
        was = "was" if one else "were"
        return f"{count} and {was} read as {encoding}: '{odd[0].decode(encoding)}'"
    return (
        f"{count}, such as {odd[0]!r}; set --data.name-encoding, for example to cp1252, cp932 or "
        "gbk"
    )


def _infos(file: Path, shared: OpenFile) -> Iterator[tarfile.TarInfo]:
    """Yield the headers; they are not kept, and an endless circle of them is refused."""
    headers = cast("BinaryIO", ArchiveHeaders(shared.part()))
    reached = -1
    try:
        with tarfile.open(fileobj=headers, mode="r:", errorlevel=2) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]
                if info.size < 0 or info.offset <= reached:
                    raise damaged(file, f"the header of {info.name} is wrong")
                reached = info.offset
                yield info
            if archive.offset < shared.size and not _ends(shared, archive.offset):
                raise damaged(file, f"the header at byte {archive.offset:,} is wrong")
            if (following := _next_archive(shared, archive.offset)) is not None:
                raise DataError(
                    f"{file} holds several archives, one after the other: the next one begins at "
                    f"byte {following:,}, and only the first would be read. Keep them as separate "
                    "files, or unpack them with `tar --ignore-zeros -xf` and pass the folder."
                )
    except HEADER_ERRORS as error:
        raise damaged(file, str(error)) from error


def _ends(shared: OpenFile, offset: int) -> bool:
    """Return whether the archive ends at a position, with a block of zeros or none."""
    return not shared.read_at(offset, tarfile.BLOCKSIZE).strip(b"\0")


def _next_archive(shared: OpenFile, offset: int) -> int | None:
    """Return where another archive begins after the end of one, as `cat` joins them."""
    while piece := shared.read_at(offset, _HEADER_BYTES):
        if rest := piece.lstrip(b"\0"):
            begin = offset + len(piece) - len(rest)
            header = shared.read_at(begin, tarfile.BLOCKSIZE)
            return begin if header[_MAGIC_AT:].startswith(b"ustar") else None
        offset += len(piece)
    return None


def _refusal(info: tarfile.TarInfo) -> str | None:
    if info.isdir():
        return None
    if info.issym() or info.islnk():
        return "is a link; links in archives are not followed"
    if info.issparse():
        return "is a sparse file"
    return None if info.isfile() else "not a regular file"
