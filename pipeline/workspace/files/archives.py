"""Archives of images, read in place: zip and uncompressed tar files, and shards of these.

`archive_members` decides which members are read. A compressed tar can only be read from start to
end, so `readable_archive` decompresses it once. Several shards are read as one archive: an index
names them, and the path of a member begins with the name of its shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workspace.files.archive_members import (
    MOST_MEMBERS,
    Archive,
    ListedArchive,
    MemberError,
    RefusedMember,
    check_expansion,
    make_damage_error,
    read_names,
    too_many_members,
)
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.file_locks import known_digest, made_once
from patchline.pipeline.workspace.files.placeholders import whole_file
from patchline.pipeline.workspace.files.shared_file import OpenFile
from patchline.pipeline.workspace.files.tar_archive import COMPRESSIONS, READ_ERRORS, TarArchive

_ENCRYPTED = 0x1
_UTF_8 = 0x800
"""The flag of a name that is UTF-8; all others are read as cp437 by `zipfile`."""
_UNICODE_PATH = 0x7075
"""The extra field with the UTF-8 name of a member (Info-ZIP)."""
_READ_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DIRECTORY_BYTES = 1 << 29
_END, _END_BYTES, _LONGEST_COMMENT = b"PK\x05\x06", 22, 65535
_LOCATOR, _LOCATOR_BYTES = b"PK\x06\x07", 20
_END_64_BYTES = 56
_ENTRY = b"PK\x01\x02"
_FIELD_HEAD, _PATH_HEAD = 4, 5
_OPEN_ERRORS = (zipfile.BadZipFile, ValueError, RuntimeError, struct.error, EOFError)
"""What opening a damaged member raises."""


class ZipArchive(ListedArchive[zipfile.ZipInfo]):
    """A zip archive; members are found by its directory.

    Args:
        file: the archive.
        encoding: the encoding of names that do not declare one; by default UTF-8, or cp437.
    """

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        super().__init__(file)
        self._shared = OpenFile(file)
        _check_directory(file, self._shared)
        try:
            self._zip = zipfile.ZipFile(cast("BinaryIO", self._shared.part()))
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise make_damage_error(file, str(error)) from error
        packed = unpacked = encrypted = 0
        infos = self._zip.infolist()
        raw = [each for info in infos if (each := _find_undeclared_name(info))]
        names, self.note = read_names(file, raw, encoding)
        for info in infos:
            packed, unpacked = packed + info.compress_size, unpacked + info.file_size
            encrypted += info.flag_bits & _ENCRYPTED
            name = _find_declared_field(info) or names.get(
                _find_undeclared_name(info), info.filename
            )
            self._add(name, info, is_folder=name.endswith("/"), refusal=_refusal(info))
        if encrypted and not self._places:
            raise DataError(
                f"{file} is encrypted, and Patchline asks for no passwords. Unpack it and pass the "
                "folder."
            )
        if packed > self._shared.size:
            raise make_damage_error(file, "its members overlap")
        check_expansion(file, unpacked)

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes, as the archive states it."""
        return self._place(path).file_size

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it cannot be read."""
        try:
            return cast("BinaryIO", self._zip.open(self._place(path)))
        except _OPEN_ERRORS as error:
            raise MemberError(f"cannot be read from the archive: {error}") from error


def is_zip(file: Path) -> bool:
    """Return whether a file ends like a zip archive; it may begin with something else."""
    return zipfile.is_zipfile(cast("BinaryIO", OpenFile(file).part()))


def _find_undeclared_name(info: zipfile.ZipInfo) -> bytes:
    """Return a member's name if its encoding is not declared and matters; else nothing."""
    name = info.orig_filename.partition("\0")[0]
    if info.flag_bits & _UTF_8 or name.isascii() or _find_declared_field(info):
        return b""
    return name.encode("cp437")


def _find_declared_field(info: zipfile.ZipInfo) -> str:
    """Return the name of the extra field for UTF-8 names; empty if there is none that fits."""
    extra, raw = info.extra, info.orig_filename
    if info.flag_bits & _UTF_8 or raw.isascii():
        return ""
    while len(extra) >= _FIELD_HEAD:
        kind, size = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == _UNICODE_PATH and len(field) > _PATH_HEAD and field[0] == 1:
            (checksum,) = struct.unpack_from("<L", field, 1)
            if checksum == zlib.crc32(raw.encode("cp437", "ignore")):
                return field[_PATH_HEAD:].decode("utf-8", "replace")
    return ""


def _refusal(info: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "is a link; links in archives are not followed"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "not a regular file"
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if info.compress_type not in _READ_METHODS and not info.filename.endswith("/"):
        name = zipfile.compressor_names.get(info.compress_type, "in an unknown way")  # type: ignore[attr-defined]
        return f"is compressed with {name}; only deflate is read from a zip"
    return None


def _check_directory(file: Path, shared: OpenFile) -> None:
    """Refuse an archive whose directory would take too much memory, before it is read."""
    tail_start = max(0, shared.size - _END_BYTES - _LONGEST_COMMENT - _LOCATOR_BYTES)
    tail = shared.read_at(tail_start, shared.size - tail_start)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise make_damage_error(file, "the directory at its end is missing")
    (size,) = struct.unpack_from("<L", tail, at + 12)
    end = tail_start + at
    if at >= _LOCATOR_BYTES and tail[at - _LOCATOR_BYTES :].startswith(_LOCATOR):
        (position,) = struct.unpack_from("<Q", tail, at - _LOCATOR_BYTES + 8)
        record = shared.read_at(min(position, shared.size), _END_64_BYTES)
        if len(record) == _END_64_BYTES:
            (size,) = struct.unpack_from("<Q", record, 40)
            end = position
    if size > shared.size:
        raise make_damage_error(file, "its directory is larger than the file")
    start = max(0, end - size)  # not the stated offset: something may stand before the archive
    entries = shared.read_at(start, min(size, _DIRECTORY_BYTES)).count(_ENTRY)
    if size > _DIRECTORY_BYTES or entries > MOST_MEMBERS:
        raise too_many_members(file)


_PIECE_BYTES = 1 << 20
_OPENED = 8
"""Archives whose members are kept in memory; shards are mostly read one after the other."""
NAMED_SUFFIX = ".names"
"""Suffix of a file that stands for an archive, and states the encoding of its names."""
INDEX_SUFFIX = ".shards"
"""Suffix of the index of several shards."""
_INDEX_FORMAT = "patchline shards 1"
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_opening: dict[Path, threading.Lock] = {}
"""One of several threads finds the members, which of an object are fetched for that."""


def readable_archive(file: Path, work_dir: Path, name_encoding: str | None = None) -> Path:
    """Return an archive that can be read in place; a compressed tar is decompressed once.

    Args:
        file: a zip or tar file.
        work_dir: the folder that receives the tar file, named after the digest of the compressed
            one.
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
    return write_named_archive(readable, name_encoding, work_dir / "names")


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
        named, encoding = read_named_encoding(file)
        status = named.stat()
        times = status.st_mtime_ns, status.st_ctime_ns
        with _opening.setdefault(named, threading.Lock()):
            return _open(named, encoding, status.st_size, times, status.st_ino)


def read_named_encoding(file: Path) -> tuple[Path, str | None]:
    """Return the archive that a file stands for, and the encoding of its names if it states one."""
    if file.suffix != NAMED_SUFFIX:
        return file, None
    content = json.loads(file.read_text(encoding="utf-8"))
    return Path(content["archive"]), str(content["encoding"])


@lru_cache(maxsize=_OPENED)
def _open(
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
    named, _ = read_named_encoding(file)
    archive = open_archive(named) if named.suffix == INDEX_SUFFIX else None
    return archive.shards if isinstance(archive, ShardedArchive) else [named]


def write_named_archive(archive: Path, encoding: str, folder: Path) -> Path:
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
            raise make_damage_error(file, str(error)) from error
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
                raise make_damage_error(file, str(error)) from error
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
