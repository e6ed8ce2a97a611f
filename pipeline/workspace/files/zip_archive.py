"""Zip archives, read in place."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.archive_members import (
    MOST_MEMBERS,
    Listing,
    MemberError,
    check_expansion,
    damaged,
    read_names,
    too_many_members,
)
from patchline.pipeline.workspace.files.shared_file import OpenFile

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


class ZipArchive:
    """A zip archive; members are found by its directory.

    Args:
        file: the archive.
        encoding: of the names that do not declare one; by default UTF-8, or cp437.
    """

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self._shared = OpenFile(file)
        _check_directory(file, self._shared)
        listing = Listing(file)
        try:
            self._zip = zipfile.ZipFile(cast("BinaryIO", self._shared.part()))
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise damaged(file, str(error)) from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        packed = unpacked = encrypted = 0
        repeated = dict[str, None]()
        infos = self._zip.infolist()
        raw = [each for info in infos if (each := _undeclared(info))]
        names, self.note = read_names(file, raw, encoding)
        for info in infos:
            packed, unpacked = packed + info.compress_size, unpacked + info.file_size
            encrypted += info.flag_bits & _ENCRYPTED
            name = _declared(info) or names.get(_undeclared(info), info.filename)
            is_folder, refusal = name.endswith("/"), _refusal(info)
            path = listing.accepted(name, is_folder=is_folder, refusal=refusal)
            if path is not None:
                if path in self._members:
                    repeated[path] = None
                self._members[path] = info
        if encrypted and not self._members:
            raise DataError(
                f"{file} is encrypted, and Patchline asks for no passwords. Unpack it and pass the "
                "folder."
            )
        if packed > self._shared.size:
            raise damaged(file, "its members overlap")
        check_expansion(file, unpacked)
        self.paths, self.repeated = list(self._members), list(repeated)
        self.folders, self.refused = listing.folders, listing.refused

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes, as the archive states it."""
        return self._member(path).file_size

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it cannot be read."""
        try:
            return cast("BinaryIO", self._zip.open(self._member(path)))
        except _OPEN_ERRORS as error:
            raise MemberError(f"cannot be read from the archive: {error}") from error

    def _member(self, path: str) -> zipfile.ZipInfo:
        if path not in self._members:
            raise MemberError("is not in the archive")
        return self._members[path]


def is_zip(file: Path) -> bool:
    """Return whether a file ends like a zip archive; it may begin with something else."""
    return zipfile.is_zipfile(cast("BinaryIO", OpenFile(file).part()))


def _undeclared(info: zipfile.ZipInfo) -> bytes:
    """Return a member's name if its encoding is not declared and matters; else nothing."""
    name = info.orig_filename.partition("\0")[0]
    if info.flag_bits & _UTF_8 or name.isascii() or _declared(info):
        return b""
    return name.encode("cp437")


def _declared(info: zipfile.ZipInfo) -> str:
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
        raise damaged(file, "the directory at its end is missing")
    (size,) = struct.unpack_from("<L", tail, at + 12)
    end = tail_start + at
    if at >= _LOCATOR_BYTES and tail[at - _LOCATOR_BYTES :].startswith(_LOCATOR):
        (position,) = struct.unpack_from("<Q", tail, at - _LOCATOR_BYTES + 8)
        record = shared.read_at(min(position, shared.size), _END_64_BYTES)
        if len(record) == _END_64_BYTES:
            (size,) = struct.unpack_from("<Q", record, 40)
            end = position
    if size > shared.size:
        raise damaged(file, "its directory is larger than the file")
    start = max(0, end - size)  # not the stated offset: something may stand before the archive
    entries = shared.read_at(start, min(size, _DIRECTORY_BYTES)).count(_ENTRY)
    if size > _DIRECTORY_BYTES or entries > MOST_MEMBERS:
        raise too_many_members(file)
