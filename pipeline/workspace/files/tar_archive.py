"""Tar archives and WebDataset shards, read in place.

For example, `train-000000.tar` holds 0001.jpg, 0001.cls, 0002.jpg, 0002.cls and so on.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.archive_members import (
    ListedArchive,
    check_expansion,
    make_damage_error,
    read_names,
)
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES, TAR_SUFFIXES, split_named
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED
from patchline.pipeline.workspace.files.placeholders import whole_file
from patchline.pipeline.workspace.files.shared_file import OpenFile

_HEADER_BYTES = 1 << 20
"""The most that is read at once for a header; more is an attempt to fill the memory."""
_MAGIC_AT = 257
"""Position in a header where its format is named."""
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


class TarArchive(ListedArchive[_MemberPlace]):
    """A tar archive; its headers are read once to find the members.

    Args:
        file: the archive.
        encoding: the encoding of names that are not UTF-8; by default, these are escaped.
    """

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        super().__init__(file)
        self._shared = OpenFile(file)
        unpacked, odd = 0, list[bytes]()
        for info in _infos(file, self._shared):
            name = info.name
            if raw := _find_undecoded(name):
                odd.append(raw)
                name = read_names(file, [raw], encoding).names[raw] if encoding else name
            place = _MemberPlace(info.offset_data, info.size)
            path = self._add(name, place, is_folder=info.isdir(), refusal=_refusal(info))
            if path is None:
                continue
            if info.offset_data + info.size > self._shared.size:
                raise make_damage_error(file, f"it ends in the middle of {path}")
            unpacked += info.size
        check_expansion(file, unpacked)
        self.note = _note(file, odd, encoding) if odd else ""

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return self._place(path).size

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it is not in the archive."""
        place = self._place(path)
        return io.BufferedReader(self._shared.part(place.offset, place.size))


def _find_undecoded(name: str) -> bytes:
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
                    raise make_damage_error(file, f"the header of {info.name} is wrong")
                reached = info.offset
                yield info
            if archive.offset < shared.size and not _ends(shared, archive.offset):
                raise make_damage_error(file, f"the header at byte {archive.offset:,} is wrong")
            if (following := _next_archive(shared, archive.offset)) is not None:
                raise DataError(
                    f"{file} holds several archives, one after the other: the next one begins at "
                    f"byte {following:,}, and only the first would be read. Keep them as separate "
                    "files, or unpack them with `tar --ignore-zeros -xf` and pass the folder."
                )
    except HEADER_ERRORS as error:
        raise make_damage_error(file, str(error)) from error


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


COMPRESSIONS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
)
"""The first bytes of compressed files, and what opens each."""
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)
"""What reading a damaged member raises, besides `zipfile.BadZipFile`."""


_LOOKED_AT = 24
_HEAD_BYTES = 1 << 22
_LABELS = frozenset({"cls", "json", "index", "id"})


def sample_key(path: str) -> tuple[str, str]:
    """Return the key of the sample that a member belongs to, and what kind of member it is.

    `a/0001.seg.png` is the member `seg.png` of sample `a/0001`.
    """
    folder, slash, name = path.rpartition("/")
    stem, _, kind = name.partition(".")
    return f"{folder}{slash}{stem}", kind.lower()


def shards_in(place: Path) -> list[Path]:
    """Return the shards of a folder, also in its folders for splits, or a single one; else none.

    Whether files are shards is told by the names of the first members of the first one.
    """
    if place.is_file():
        return [place] if _may_be_tar(place) and _holds_samples(place) else []
    try:
        inside = sorted(each for each in place.iterdir() if not each.name.startswith("."))
        inside = [each for each in inside if not _is_ignored(each)]
        folders = [each for each in inside if each.is_dir()]
        if any(each.suffix.lower() in IMAGE_SUFFIXES for each in inside):
            return []
        if not all(split_named(each.name) for each in folders):
            return []
        shards = [each for each in inside if each.is_file() and _may_be_tar(each)]
        for folder in folders:
            shards += sorted(each for each in folder.iterdir() if _may_be_tar(each))
    except OSError:  # whoever reads the folder says why it cannot be
        return []
    return shards if shards and _holds_samples(shards[0]) else []


def _is_ignored(path: Path) -> bool:
    return DEFAULT_IGNORED.skips(path.name, path.name, is_folder=path.is_dir())


def _may_be_tar(file: Path) -> bool:
    return file.name.lower().endswith(TAR_SUFFIXES) and file.is_file()


def _holds_samples(file: Path) -> bool:
    """Return whether an image shares its key with a label or a JSON object, without folders."""
    kinds: dict[str, set[str]] = {}
    for name in itertools.islice(_first_names(file), _LOOKED_AT):
        key, kind = sample_key(name)
        kinds.setdefault(key, set()).add(kind)
    return any(each & _LABELS and any(map(_is_image, each)) for each in kinds.values())


def _is_image(kind: str) -> bool:
    """Return whether a kind of member is an image."""
    return PurePosixPath(f"x.{kind}").suffix in IMAGE_SUFFIXES


def _first_names(file: Path) -> Iterator[str]:
    """Yield the names of the first files, as far as they can be read."""
    try:
        start = OpenFile(file).read_at(0, 8)
        opener = next((each for magic, each in COMPRESSIONS if start.startswith(magic)), None)
        if opener is None:
            content: io.IOBase = OpenFile(file).part()
        else:
            with opener(whole_file(file)) as opened:
                content = io.BytesIO(opened.read(_HEAD_BYTES))
        headers = cast("BinaryIO", ArchiveHeaders(content))
        with tarfile.open(fileobj=headers, mode="r:", errorlevel=2) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]
                if info.isfile():
                    yield info.name
    except (*HEADER_ERRORS, *READ_ERRORS):
        return
