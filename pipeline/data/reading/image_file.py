"""Read image files: regular files of limited size, large ones one at a time.

This module is copied into every packaged model together with the decoder. A pipe, a device, a
socket, or a link to one is refused before it is opened, because reading it might never end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from patchline.pipeline.data.reading.decoding import SharedBudget, UndecodableImageError

_NO_TARGET = {errno.ENOENT, errno.ELOOP}
MAX_FILE_BYTES = 1 << 29
"""512 MiB; larger files are not read as images."""
SMALL_FILE_BYTES = 1 << 23
"""Smaller files need no share of the budget."""
_bytes_in_flight = SharedBudget(MAX_FILE_BYTES)


@contextmanager
def image_bytes(file: Path) -> Iterator[bytes]:
    """Read a whole file and reserve its memory while the block runs.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read, or is too large.
    """
    with open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        # It may grow, and some sizes are unknown, so the size alone does not limit what is read.
        with content_of(opened, size, MAX_FILE_BYTES) as data:
            yield data


@contextmanager
def content_of(opened: BinaryIO, size: int, limit: int) -> Iterator[bytes]:
    """Read all of an opened file and reserve its memory while the block runs.

    Args:
        opened: a file, or a member of an archive.
        size: its size in bytes, as far as it is known.
        limit: the most bytes that it may have.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read, or is too large.
    """
    if size > MAX_FILE_BYTES:
        raise UndecodableImageError(too_large(size))
    with _bytes_in_flight.share(size if size > SMALL_FILE_BYTES else 0):
        try:
            # memory is reserved for all that is asked for, so the limit is only asked for if needed
            data = opened.read(min(size, limit) + 1)
            if len(data) > size:
                data += opened.read(limit + 1 - len(data))
        except OSError as error:
            raise UndecodableImageError(f"cannot be read: {error.strerror}") from error
        if len(data) > limit:
            raise UndecodableImageError(too_large(len(data)))
        yield data


@contextmanager
def open_regular(file: Path | str) -> Iterator[BinaryIO]:
    """Open a regular file, or a link to one, for reading.

    Raises:
        UndecodableImageError: with the reason, if it is something else, or cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        regular = stat.S_ISREG(os.stat(file).st_mode)  # noqa: PTH116 - a text, too
        descriptor = os.open(file, flags) if regular else -1
    except (OSError, ValueError) as error:  # missing, not readable, a zero byte in its name
        if getattr(error, "errno", None) in _NO_TARGET and os.path.islink(file):  # noqa: PTH114 - same
            raise UndecodableImageError("the link leads to no file") from error
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UndecodableImageError(f"cannot be read: {reason}") from error
    if not regular:
        raise UndecodableImageError("not a regular file")
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since the check
            raise UndecodableImageError("not a regular file")
        yield opened


def too_large(size: int) -> str:
    """Return the reason why a file of this many bytes is not read."""
    return f"the file has {size} bytes, more than the maximum of {MAX_FILE_BYTES}; make it smaller"
