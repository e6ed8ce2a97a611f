"""An array on disk that is filled in pieces, so that an interrupted computation can be resumed.

Two files: the array, and a log with a line for each finished piece. A line is appended after the
piece has been flushed to disk, and contains the piece's SHA-256; a piece without a matching line is
not used. The name of the files identifies the content and is part of each digest.

Shapes: N rows, D values of a row.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.files.atomic_files import replacing, storage_errors, write_text
from pipeline.files.file_locks import locked, try_lock

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
        shape: N and D.
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
                np.lib.format.open_memmap(temporary, "w+", np.float32, self.shape)
                _reserve(temporary)
        write_text(self._log, "".join(_line(piece) for piece in pieces))
        return pieces

    def write(self, start: int, values_ND: Floats) -> None:
        """Store finished rows, the first of which is row `start`; call it under the lock.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        values_ND = np.ascontiguousarray(values_ND, np.float32)
        piece = Piece(start, start + len(values_ND), self._digest(start, values_ND))
        row_bytes = self.shape[1] * values_ND.itemsize
        with storage_errors(self._file):
            with self._file.open("r+b") as opened:
                # The array is at the end of the file, after a header of numpy's.
                opened.seek((start - self.shape[0]) * row_bytes, os.SEEK_END)
                opened.write(values_ND.tobytes())
                _flush(opened.fileno(), opened)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(_line(piece))
                _flush(log.fileno(), log)

    def read(self) -> Floats:
        """Return the array, mapped from disk and read-only."""
        values_ND: Floats = np.load(self._file, mmap_mode="r", allow_pickle=False)
        return values_ND

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.npy"

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.pieces.jsonl"

    def _stored(self) -> Floats | None:
        """Return the array as it is on disk; None if there is none of this shape."""
        try:
            values_ND = self.read()
        except (OSError, ValueError):
            return None
        fits = values_ND.shape == self.shape and values_ND.dtype == np.dtype(np.float32)
        return values_ND if fits else None

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


def _flush(descriptor: int, opened: Any) -> None:
    opened.flush()
    os.fsync(descriptor)


def _reserve(file: Path) -> None:
    """Allocate the disk space now: a full disk is an error before the computation begins."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
