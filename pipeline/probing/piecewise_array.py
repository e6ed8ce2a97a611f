"""An array on disk that is filled in pieces, so that an interrupted computation can be resumed.

Two files: the array without a header, and a log with a line for each finished piece. A line is
appended after the piece has been flushed to disk, and contains the piece's SHA-256; a piece without
a matching line is not used. The name of the files identifies the content and is part of each
digest.

Shapes: N rows, D values of a row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from patchline.pipeline.files.atomic_files import replacing, storage_errors, write_text
from patchline.pipeline.files.file_locks import locked, try_lock

logger = logging.getLogger(__name__)

Floats = np.ndarray[Any, np.dtype[np.float32]]


class Piece(NamedTuple):
    """Finished rows, from `start` to before `stop`, and their digest."""

    start: int
    stop: int
    sha256: str


@dataclass(frozen=True)
class PiecewiseArray:
    """A float32 array (N, D) on disk, and which of its rows are finished.

    Attributes:
        folder: created if it does not exist.
        name: of the files; identifies the content of the array.
        shape: N and D, not 0.
    """

    folder: Path
    name: str
    shape: tuple[int, int]

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the array's lock while the block runs; wait while another process holds it."""
        lock = self.folder / f"{self.name}.lock"
        with try_lock(lock) as acquired:
            if acquired:
                yield
                return
        logger.info("Another process is computing the same features; waiting until it ends.")
        with locked(lock):
            yield

    def finished(self) -> list[Piece]:
        """Return the pieces whose rows match their digest, in the order in which they were written.

        Damaged pieces are left out with a warning.
        """
        recorded = self._recorded()
        values_ND = self._stored() if recorded else None
        if values_ND is None:
            return []
        intact = [
            piece
            for piece in recorded
            if 0 <= piece.start < piece.stop <= len(values_ND)
            and self._digest(piece.start, values_ND[piece.start : piece.stop]) == piece.sha256
        ]
        if len(intact) < len(recorded):
            logger.warning(
                "%d of %d pieces of the stored features are damaged; they are computed again.",
                len(recorded) - len(intact),
                len(recorded),
            )
        return intact

    def resume(self) -> list[Piece]:
        """Prepare the files for writing, and return the finished pieces; call it under the lock.

        Raises:
            StorageError: if the disk has no space for the whole array, or is read-only.
        """
        pieces = self.finished()
        if self._stored() is None:
            with replacing(self._file) as temporary:
                _reserve(temporary, self._bytes)
        write_text(self._log, "".join(_line(piece) for piece in pieces))
        return pieces

    def write(self, start: int, values_ND: Floats) -> None:
        """Store finished rows, the first of which is row `start`; call it under the lock.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        values_ND = np.ascontiguousarray(values_ND, np.float32)
        piece = Piece(start, start + len(values_ND), self._digest(start, values_ND))
        with storage_errors(self._file):
            with self._file.open("r+b") as opened:
                opened.seek(start * values_ND[0].nbytes)
                opened.write(values_ND.tobytes())
                _flush(opened)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(_line(piece))
                _flush(log)

    def read(self) -> Floats:
        """Return the array, mapped from disk and read-only."""
        return np.memmap(self._file, np.float32, "r", shape=self.shape)

    @property
    def _bytes(self) -> int:
        return self.shape[0] * self.shape[1] * np.dtype(np.float32).itemsize

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.f32"

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.pieces.jsonl"

    def _stored(self) -> Floats | None:
        """Return the array as it is on disk; None if there is none of this shape."""
        with contextlib.suppress(OSError):
            if self._file.stat().st_size == self._bytes:
                return self.read()
        return None

    def _recorded(self) -> list[Piece]:
        """Return the pieces of the log; a line that was cut short or changed is left out."""
        try:
            lines = self._log.read_bytes().splitlines()
        except OSError:
            return []
        pieces = []
        for line in lines:
            try:
                start, stop, sha256 = json.loads(line)
                pieces.append(Piece(int(start), int(stop), str(sha256)))
            except (ValueError, TypeError):
                continue
        return pieces

    def _digest(self, start: int, values_ND: Floats) -> str:
        digest = hashlib.sha256(f"{self.name} {self.shape} {start} ".encode())
        digest.update(values_ND.tobytes())
        return digest.hexdigest()


def _line(piece: Piece) -> str:
    return f"{json.dumps(piece)}\n"


def _flush(opened: IO[Any]) -> None:
    opened.flush()
    os.fsync(opened.fileno())


def _reserve(file: Path, size: int) -> None:
    """Create a file with disk space: a full disk is an error before the computation begins."""
    with file.open("wb") as opened:
        opened.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(opened.fileno(), 0, size)
