"""Archives on an object store, read by ranges: the directory of a zip, and the members in use.

An object is divided into parts of 1 MiB. What is read of one is kept in the workspace's folder
`sources/object_parts/` with a checksum, so each is fetched at most once by a machine while its
cache lasts, and again if its file is damaged. Whoever reads on gets the next parts in one request,
up to 8 MiB, as an operating system reads ahead.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.file_locks import made_once
from patchline.pipeline.workspace.files.placeholders import RangedObject
from patchline.pipeline.workspace.object_store import Address, ConflictError, ObjectStore

PART_BYTES = 1 << 20
_MOST_AHEAD = 8
"""Maximum number of parts in one request."""
_IN_MEMORY = 4
"""Number of parts in memory, so that the small reads of an archive's headers open no file each."""
_WHOLE = "whole"
_CHECKSUM_BYTES = 4
"""Size of the CRC-32 behind each part in its file."""


class ObjectRanges:
    """Reads an object by ranges; several threads and processes may do so at the same time."""

    def __init__(self, ranged: RangedObject) -> None:
        self._object = ranged
        state = f"{ranged.address} {ranged.e_tag} {ranged.bytes}"
        self._folder = ranged.parts / hashlib.sha256(state.encode()).hexdigest()[:32]
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._ahead, self._next = 1, -1
        self._verified = set[int]()
        """Parts whose file has had its checksum in this process."""
        self._lock = threading.Lock()
        self._store: tuple[int, ObjectStore] | None = None

    def read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes from a position, fewer only where the object ends.

        Raises:
            StorageError: if the object has changed, the store does not answer, or the disk is full.
            ConfigError: if the credentials are not, or no longer, accepted.
        """
        stop = min(offset + size, self._object.bytes)
        if stop <= offset:
            return b""
        first, last = offset // PART_BYTES, (stop - 1) // PART_BYTES
        with self._lock:
            data = b"".join([self._part(number, last) for number in range(first, last + 1)])
        begin = offset - first * PART_BYTES
        return data[begin : begin + stop - offset]

    def whole(self) -> Path:
        """Return a file with all of the object.

        Raises:
            StorageError: if the store does not answer, or the disk is full.
        """
        return made_once(self._folder / _WHOLE / "object", self._write_whole)

    def _write_whole(self, target: Path) -> None:
        with target.open("wb") as out:
            for start in range(0, self._object.bytes, _MOST_AHEAD * PART_BYTES):
                out.write(self.read_at(start, _MOST_AHEAD * PART_BYTES))

    def _part(self, number: int, last: int) -> bytes:
        """Return a part; if it is fetched, together with others that are likely to be read next.

        Args:
            number: the number of the part, from 0.
            last: the number of the last one that is certain to be read.
        """
        data = self._kept.get(number)
        if data is None:
            data = self._read(number)
            if data is None:
                data = self._fetch(number, last)
            self._keep(number, data)
        self._next = number + 1
        return data

    def _keep(self, number: int, data: bytes) -> None:
        self._kept[number] = data
        while len(self._kept) > _IN_MEMORY:
            self._kept.popitem(last=False)

    def _read(self, number: int) -> bytes | None:
        """Return a part that was fetched before; None if it was not, or its file is damaged.

        Its checksum is compared when this process reads it first: it costs about what the reading
        does, and an image is read from the same part as its neighbours.
        """
        try:
            content = self._file(number).read_bytes()
        except OSError:
            return None
        data, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
        if len(data) != self._length(number):
            return None
        if number not in self._verified:
            if _checksum(data) != checksum:
                return None
            self._verified.add(number)
        return data

    def _fetch(self, number: int, last: int) -> bytes:
        """Fetch a part, and those after it that are missing, in one request."""
        is_next = number in (self._next, self._next - 1)
        self._ahead = min(2 * self._ahead, _MOST_AHEAD) if is_next else 1
        end = number + 1
        most = min(number + max(self._ahead, last + 1 - number), number + _MOST_AHEAD)
        while end < most and self._length(end) > 0 and not self._file(end).exists():
            end += 1
        start, stop = number * PART_BYTES, min(end * PART_BYTES, self._object.bytes)
        data = self._range(start, stop)
        for each in range(number, end):
            piece = bytes(data[(each - number) * PART_BYTES :][:PART_BYTES])
            with replace_file(self._file(each)) as temporary:
                temporary.write_bytes(piece + _checksum(piece))
        return bytes(data[:PART_BYTES])

    def _range(self, start: int, stop: int) -> memoryview:
        address = Address.of_object(self._object.address)
        folder, _, name = address.prefix.rpartition("/")
        if self._store is None or self._store[0] != os.getpid():  # no connection outlasts a fork
            self._store = os.getpid(), chosen.open_store(address._replace(prefix=folder))
        try:
            data = self._store[1].read_range(name, start, stop, if_match=self._object.e_tag)
        except ConflictError:
            data = None
        if data is None or len(data) != stop - start:
            raise StorageError(
                f"{self._object.address} has changed or was deleted while it was read. Run again."
            )
        return memoryview(data)

    def _length(self, number: int) -> int:
        return min(PART_BYTES, self._object.bytes - number * PART_BYTES)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:08d}"


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES)
