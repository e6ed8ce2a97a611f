"""Archives of images, read in place: zip and uncompressed tar files, and shards of these.

No name in an archive ever becomes the name of a file on disk. Members that could do harm, such as
links or paths that lead outside, are refused one by one; an archive that would unpack to much more
than its own size, or has too many members, is refused as a whole. A compressed tar can only be read
from start to end, so `readable_archive` decompresses it once.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.made_once import known_digest, made_once

MOST_MEMBERS = 2_000_000
"""Archives with more files and folders are refused."""
MOST_EXPANSION = 200
"""How many times its own size an archive may unpack to."""
ALWAYS_ALLOWED_BYTES = 1 << 30
"""Archives that unpack to at most 1 GiB may be compressed to any extent."""

READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)
"""What reading a damaged member raises, besides `zipfile.BadZipFile`."""

_LONGEST_PATH = 4096
_DRIVE = re.compile(r"[A-Za-z]:")
_PIECE_BYTES = 1 << 20
_OPENED = 8
"""Archives whose members are kept in memory; shards are mostly read one after the other."""
COMPRESSIONS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
)
"""The first bytes of compressed files, and what opens each."""
NAMED_SUFFIX = ".names"
"""Of a file that stands for an archive, and states the encoding of its names."""
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")


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


def readable_archive(file: Path, work_dir: Path, name_encoding: str | None = None) -> Path:
    """Return an archive that can be read in place; a compressed tar is decompressed once.

    Args:
        file: a zip or tar file.
        work_dir: receives the tar file, named after the digest of the compressed one.
        name_encoding: encoding of the names that do not declare one; by default UTF-8 or cp437.

    Returns:
        The archive, or a file that stands for it and states the encoding.

    Raises:
        DataError: if it is damaged, unpacks to much more than its own size, or has names that are
            not in this encoding.
        StorageError: if the disk is full or read-only.
    """
    readable = _readable(file, work_dir)
    if name_encoding is None or not open_archive(readable).note:
        return readable
    return named_archive(readable, name_encoding, work_dir / "names")


def _readable(file: Path, work_dir: Path) -> Path:
    with data_errors(file):
        with file.open("rb") as opened:
            head = opened.read(8)
        opener = next((opener for start, opener in COMPRESSIONS if head.startswith(start)), None)
        if opener is None:
            return file
        digest = known_digest(file, work_dir / "digests")
    return made_once(
        work_dir / f"{digest[:32]}.tar",
        lambda target: _decompress(file, opener, target),
    )


def open_archive(file: Path) -> Archive:
    """Open a zip or an uncompressed tar; the same one is returned until the file changes.

    Raises:
        DataError: if it is damaged, encrypted, or refused as a possible bomb.
    """
    with data_errors(file):
        named, encoding = named_encoding(file)
        status = named.stat()
        times = status.st_mtime_ns, status.st_ctime_ns
        return _opened(named, encoding, status.st_size, times, status.st_ino)


def named_encoding(file: Path) -> tuple[Path, str | None]:
    """Return the archive that a file stands for, and the encoding of its names if it states one."""
    if file.suffix != NAMED_SUFFIX:
        return file, None
    content = json.loads(file.read_text(encoding="utf-8"))
    return Path(content["archive"]), str(content["encoding"])


@lru_cache(maxsize=_OPENED)
def _opened(
    file: Path, encoding: str | None, _size: int, _times: tuple[int, int], _inode: int
) -> Archive:
    from patchline.pipeline.files.tar_archive import TarArchive
    from patchline.pipeline.files.tar_shards import INDEX_SUFFIX, ShardedArchive
    from patchline.pipeline.files.zip_archive import ZipArchive, is_zip

    if file.suffix == INDEX_SUFFIX:
        return ShardedArchive(file)
    with file.open("rb") as opened:
        looks_like_zip = opened.read(4) in _ZIP_STARTS
    if looks_like_zip or (file.suffix.lower() == ".zip" and is_zip(file)):
        return ZipArchive(file, encoding)
    return TarArchive(file, encoding)


def named_archive(archive: Path, encoding: str, folder: Path) -> Path:
    """Write the file that stands for an archive whose names are in an encoding, and return it."""
    text = json.dumps({"archive": str(archive.resolve()), "encoding": encoding}, indent=1)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    file = folder / f"{digest}{NAMED_SUFFIX}"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    open_archive(file)  # says whether the names are in this encoding
    return file


@contextmanager
def data_errors(file: Path) -> Iterator[None]:
    """Turn what cannot be read about an archive into one sentence."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise damaged(file, str(error)) from error
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


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
    own = file.stat().st_size
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MOST_EXPANSION * own):
        raise DataError(
            f"{file} has {own:,} bytes and unpacks to more than {MOST_EXPANSION} times as many, "
            "like a decompression bomb. If you trust it, unpack it and pass the folder."
        )


def _decompress(file: Path, opener: Callable[[Path], Any], target: Path) -> None:
    written = 0
    with target.open("wb") as out:
        for piece in _pieces(file, opener):
            written += len(piece)
            check_expansion(file, written)
            out.write(piece)


def _pieces(file: Path, opener: Callable[[Path], Any]) -> Iterator[bytes]:
    """Yield a decompressed file; errors of writing are not among those caught here."""
    with opener(file) as opened:
        while True:
            try:
                piece = opened.read(_PIECE_BYTES)
            except READ_ERRORS as error:
                raise damaged(file, str(error)) from error
            if not piece:
                return
            yield piece


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
