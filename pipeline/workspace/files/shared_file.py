"""One opened file that several threads read at once, each from its own position.

A file that stands for an object on an object store is read there (`placeholders`).
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.workspace.files.placeholders import range_reader, size_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class OpenFile:
    """A file that stays open as long as this object exists."""

    def __init__(self, file: Path) -> None:
        self._ranges = range_reader(file)
        if self._ranges is not None:
            self.size = size_of(file)
            return
        self._descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        self.size = os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from a position."""
        if self._ranges is not None:
            return self._ranges.read_at(offset, size)
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def part(self, start: int = 0, size: int | None = None) -> FilePart:
        """Return a stream of a part of the file; by default, of all of it."""
        return FilePart(self, start, self.size - start if size is None else size)


class FilePart(io.RawIOBase):
    """A stream of a part of a file, with a position of its own."""

    def __init__(self, shared: OpenFile, start: int, size: int) -> None:
        super().__init__()
        self._shared, self._start, self._size = shared, start, size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in the part."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"the position {base + offset} lies before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self._size - self._position))
        data = self._shared.read_at(self._start + self._position, size)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
