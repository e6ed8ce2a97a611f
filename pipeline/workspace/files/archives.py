"""Archives of images, read in place: zip and uncompressed tar files, and shards of these.

`archive_members` decides which members are read. A compressed tar can only be read from start to
end, so `readable_archive` decompresses it once. Several shards are read as one archive: an index
names them, and the path of a member begins with the name of its shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workspace.files.archive_members import (
    Archive,
    MemberError,
    RefusedMember,
    check_expansion,
    damaged,
)
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.made_once import known_digest, made_once
from patchline.pipeline.workspace.files.placeholders import whole_file
from patchline.pipeline.workspace.files.shared_file import OpenFile
from patchline.pipeline.workspace.files.tar_archive import COMPRESSIONS, READ_ERRORS, TarArchive
from patchline.pipeline.workspace.files.zip_archive import ZipArchive, is_zip

_PIECE_BYTES = 1 << 20
_OPENED = 8
"""Archives whose members are kept in memory; shards are mostly read one after the other."""
NAMED_SUFFIX = ".names"
"""Of a file that stands for an archive, and states the encoding of its names."""
INDEX_SUFFIX = ".shards"
"""Of the index of several shards."""
_INDEX_FORMAT = "patchline shards 1"
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_opening: dict[Path, threading.Lock] = {}
"""One of several threads finds the members, which of an object are fetched for that."""


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
        head = OpenFile(file).read_at(0, 8)
        opener = next((opener for start, opener in COMPRESSIONS if head.startswith(start)), None)
        if opener is None:
            return file
        whole = whole_file(file)
        digest = known_digest(whole, work_dir / "digests")
    tar = made_once(
        work_dir / f"{digest[:32]}.tar",
        lambda target: _decompress(whole, opener, target),
    )
    with suppress(StorageError):  # a workspace that is read-only
        _note_origin(tar, file)
    return tar


def origin_of(tar: Path) -> Path | None:
    """Return the file that `readable_archive` last decompressed to a tar; None for others."""
    try:
        return Path(json.loads(_origin_file(tar).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _note_origin(tar: Path, compressed: Path) -> None:
    if origin_of(tar) != compressed.absolute():
        write_text(_origin_file(tar), json.dumps(os.fspath(compressed.absolute())))


def _origin_file(tar: Path) -> Path:
    return tar.parent / "origins" / f"{tar.stem}.json"


def open_archive(file: Path) -> Archive:
    """Open a zip or an uncompressed tar; the same one is returned until the file changes.

    Raises:
        DataError: if it is damaged, encrypted, or refused as a possible bomb.
    """
    with data_errors(file):
        named, encoding = named_encoding(file)
        status = named.stat()
        times = status.st_mtime_ns, status.st_ctime_ns
        with _opening.setdefault(named, threading.Lock()):
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
    if file.suffix == INDEX_SUFFIX:
        return ShardedArchive(file)
    looks_like_zip = OpenFile(file).read_at(0, 4) in _ZIP_STARTS
    if looks_like_zip or (file.suffix.lower() == ".zip" and is_zip(file)):
        return ZipArchive(file, encoding)
    return TarArchive(file, encoding)


def archives_of(file: Path) -> list[Path]:
    """Return the archives that a file stands for: itself, a named one, or the shards it lists."""
    named, _ = named_encoding(file)
    archive = open_archive(named) if named.suffix == INDEX_SUFFIX else None
    return archive.shards if isinstance(archive, ShardedArchive) else [named]


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


def shard_index(shards: dict[str, Path], file: Path) -> Path:
    """Write the file that stands for several shards, and return it.

    Args:
        shards: uncompressed tar files, by the names with which the paths of their members begin.
        file: the index; an earlier one is replaced if it names others.
    """
    named = {name: str(shard.resolve()) for name, shard in shards.items()}
    text = json.dumps({"format": _INDEX_FORMAT, "shards": named}, indent=1)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    return file


def shard_names(root: Path) -> frozenset[str]:
    """Return the names with which the paths of an index of shards begin; none for other roots."""
    if root.suffix != INDEX_SUFFIX:
        return frozenset()
    return frozenset(open_archive(root).folders)


class ShardedArchive:
    """The shards that an index names, as one archive; each is opened when it is needed."""

    def __init__(self, index: Path) -> None:
        content = json.loads(index.read_text(encoding="utf-8"))
        if content.get("format") != _INDEX_FORMAT:
            raise DataError(f"{index} is not an index of shards. Delete it; it is written again.")
        self._shards = {name: Path(shard) for name, shard in content["shards"].items()}

    @property
    def shards(self) -> list[Path]:
        """The files of all shards."""
        return list(self._shards.values())

    @property
    def paths(self) -> list[str]:
        """The visible files of all shards."""
        return self._of_each(lambda archive: archive.paths)

    @property
    def folders(self) -> list[str]:
        """The shards."""
        return list(self._shards)

    @property
    def refused(self) -> list[RefusedMember]:
        """The members of all shards that are not read."""
        return [
            RefusedMember(f"{name}/{member.path}", member.reason)
            for name, shard in self._shards.items()
            for member in open_archive(shard).refused
        ]

    @property
    def repeated(self) -> list[str]:
        """The files of all shards that are in theirs several times."""
        return self._of_each(lambda archive: archive.repeated)

    @property
    def note(self) -> str:
        """How names of the first shard with others than UTF-8 names were read."""
        return next(
            (note for each in self._shards.values() if (note := open_archive(each).note)), ""
        )

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes."""
        shard, member = self._member_of(path)
        return open_archive(shard).size_of(member)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it is not in its shard."""
        shard, member = self._member_of(path)
        return open_archive(shard).open(member)

    def shard_of(self, path: str) -> Path:
        """Return the shard that a file is in; raise `MemberError` if it is in none."""
        return self._member_of(path)[0]

    def _of_each(self, listed: Callable[[Archive], list[str]]) -> list[str]:
        return [
            f"{name}/{path}"
            for name, shard in self._shards.items()
            for path in listed(open_archive(shard))
        ]

    def _member_of(self, path: str) -> tuple[Path, str]:
        parts = path.split("/")
        for count in range(1, len(parts)):
            shard = self._shards.get("/".join(parts[:count]))
            if shard is not None:
                return shard, "/".join(parts[count:])
        raise MemberError("is in no shard")
