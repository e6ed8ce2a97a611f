"""A long computation in pieces: it resumes after a kill, and earlier results are used again.

The one way in which decoded images, features of a frozen model and predictions of many images are
resumed. Their rows are computed in pieces. A log beside the results has a line for each finished
piece: its first row, the row after its last, and a digest of these two and of the piece's bytes.
The line is appended after the bytes have been written. A piece without a line is computed again,
and so is one whose bytes do not match its line, because a bit has changed or the machine lost
power. Whatever is killed, at any moment, the pieces that are `intact` are whole.

Images that are added to a folder do not make the decoded images and the features of the others
worthless: what an earlier result of the same format holds undamaged is copied.

Beside `NAME.npy` lies the log of its finished pieces, `NAME.pieces.jsonl`.

Shapes: N rows of any shape.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.json_lines import AppendLog, line_of

logger = logging.getLogger(__name__)


class Piece(NamedTuple):
    """A range of rows."""

    first: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.first


class FinishedPieces:
    """The log of the finished pieces of one result.

    Args:
        log: the file; its folder exists before a piece is added.
        digest: a function that returns the digest of a piece's bytes as they are on disk, or raises
            an OSError.
        what: what the rows are, for a warning: "decoded images".
    """

    def __init__(self, log: Path, digest: Callable[[Piece], str], what: str) -> None:
        self.log = log
        self._digest, self._what = digest, what

    def recorded(self) -> dict[Piece, str]:
        """Return the pieces of the log and their digests, whether they are intact or not."""
        try:
            return dict(AppendLog(self.log).new_values(_entry))
        except OSError:
            return {}

    def intact(self) -> list[Piece]:
        """Return the finished pieces, in the order in which they were finished."""
        recorded = self.recorded()
        with ThreadPoolExecutor() as pool:
            matches = list(pool.map(self._matches, recorded.keys(), recorded.values()))
        return [piece for piece, match in zip(recorded, matches, strict=True) if match]

    def is_intact(self, piece: Piece) -> bool:
        """Return whether a piece is finished and matches its digest."""
        recorded = self.recorded()
        return piece in recorded and self._matches(piece, recorded[piece])

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Forget all pieces but these, which are intact; to be called before pieces are added.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        recorded = self.recorded()
        kept = [piece for piece in pieces if piece in recorded]
        self.warn(len(recorded) - len(kept), len(recorded))
        lines = b"".join(line_of([*piece, recorded[piece]]) for piece in kept)
        write_text(self.log, lines.decode())

    def warn(self, damaged: int, total: int) -> None:
        """Log how many of all pieces are damaged, if any are."""
        if damaged:
            logger.warning(
                "%d of %d pieces of the %s are damaged; they are computed again.",
                *(damaged, total, self._what),
            )

    def add(self, piece: Piece) -> None:
        """Record that a piece has been written.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        AppendLog(self.log).append([*piece, self._digest_of(piece)])

    def _matches(self, piece: Piece, digest: str) -> bool:
        try:
            return self._digest_of(piece) == digest
        except OSError:
            return False

    def _digest_of(self, piece: Piece) -> str:
        """Return a digest of the rows' numbers, too: equal bytes at another place are no match."""
        described = f"{piece.first} {piece.stop} {self._digest(piece)}"
        return hashlib.sha256(described.encode()).hexdigest()


def _entry(line: bytes) -> tuple[Piece, str]:
    first, stop, digest = json.loads(line)
    piece = Piece(int(first), int(stop))
    if not 0 <= piece.first < piece.stop:
        raise ValueError("these are no rows")
    return piece, str(digest)


@dataclass(frozen=True, eq=False)
class EarlierResult:
    """A result of the same format, complete or not.

    Attributes:
        contents: what identifies, for each row, what it was computed from.
        finished: the finished pieces of the result.
        read: a function that returns the rows of a piece.
    """

    contents: Sequence[Hashable]
    finished: FinishedPieces
    read: Callable[[Piece], Sequence[Any] | Any]


class EarlierRows:
    """Rows of earlier results that can be copied instead of computed.

    Args:
        results: the earlier results; the first that has a row gives it.
        missing: what identifies, for each row that is needed, what it would be computed from.
    """

    def __init__(self, results: Iterable[EarlierResult], missing: Iterable[Hashable]) -> None:
        self._places: dict[Hashable, tuple[EarlierResult, Piece, int]] = {}
        self._intact: dict[tuple[EarlierResult, Piece], bool] = {}
        left = set(missing)
        sources = iter(results)
        while left and (result := next(sources, None)):
            for piece in result.finished.recorded():
                for row, content in enumerate(result.contents[slice(*piece)]):
                    if content in left:
                        self._places[content] = result, piece, row
                        left.remove(content)

    def copies(self, contents: Iterable[Hashable]) -> Iterator[tuple[int, Any]]:
        """Yield the rows that are held undamaged, piece by piece.

        Args:
            contents: what identifies, for each row of interest, what it would be computed from.

        Yields:
            The place in `contents`, and the row as it is kept.
        """
        by_piece: dict[tuple[EarlierResult, Piece], list[tuple[int, int]]] = {}
        for place, content in enumerate(contents):
            if content in self._places:
                result, piece, row = self._places[content]
                by_piece.setdefault((result, piece), []).append((place, row))
        for (result, piece), places in by_piece.items():
            copied: list[tuple[int, Any]] = []
            if self._is_intact(result, piece):
                with contextlib.suppress(OSError, ValueError, IndexError):  # removed meanwhile
                    held = result.read(piece)
                    copied = [(place, held[row]) for place, row in places]
            yield from copied

    def _is_intact(self, result: EarlierResult, piece: Piece) -> bool:
        if (result, piece) not in self._intact:
            self._intact[result, piece] = result.finished.is_intact(piece)
        return self._intact[result, piece]


Array = np.ndarray[Any, np.dtype[Any]]

_READ_BYTES = 1 << 20


class ResumableArray:
    """An array (N, ...) on disk, and which of its rows are finished.

    Args:
        file: the file of the array, which ends in `.npy`.
        shape: shape of the whole array.
        dtype: type of the array's values.
        what: what the rows are, for a warning: "decoded images".

    Attributes:
        finished: the pieces whose rows are in the file.
    """

    def __init__(self, file: Path, shape: tuple[int, ...], dtype: Any, what: str) -> None:
        self.file, self.shape, self.dtype = file, shape, np.dtype(dtype)
        self._row_bytes = math.prod(shape[1:]) * int(self.dtype.itemsize)
        self.finished = FinishedPieces(file.with_suffix(".pieces.jsonl"), self._digest, what)
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = io.BytesIO()
        described = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        self._header = header.getvalue()
        self._bytes = len(self._header) + shape[0] * self._row_bytes

    def bytes_to_allocate(self) -> int:
        """Return how many bytes of the disk the array needs beside those that it has."""
        try:
            held = self.file.stat().st_blocks * 512
        except OSError:
            held = 0
        return max(0, self._bytes - held)

    def begin(self, intact: Iterable[Piece]) -> None:
        """Make the file ready for writing, and forget all pieces but the intact ones.

        The space is allocated now: a full disk is then an error here, not a crash later.

        Raises:
            StorageError: if the disk has no space for the whole array, or is read-only.
        """
        self.finished.keep(intact)
        with storage_errors(self.file):
            self.file.open("ab").close()
            with self.file.open("r+b") as opened:
                self._allocate(opened)
                opened.seek(0)
                opened.write(self._header)

    def rows_in(self, pieces: Iterable[Piece]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows (N,) are in some pieces."""
        rows_N = np.zeros(self.shape[0], bool)
        for piece in pieces:
            rows_N[slice(*piece)] = True
        return rows_N

    def resume(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Keep the intact pieces, make the file ready for writing, and return which rows are there.

        Raises:
            StorageError: if the disk has no space for the whole array, or is read-only.
        """
        intact = self.finished.intact()
        self.begin(intact)
        return self.rows_in(intact)

    def write(self, first: int, rows: Array) -> None:
        """Write a piece that begins at a row, and record it; several processes must not at once.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        with storage_errors(self.file), self.file.open("r+b") as opened:
            opened.seek(self._offset(first))
            opened.write(np.ascontiguousarray(rows, self.dtype).data)
        self.finished.add(Piece(first, first + len(rows)))

    def opened(self, mode: Literal["r", "r+"] = "r") -> Array:
        """Return the whole array, mapped from disk."""
        mapped: Array = np.load(self.file, mmap_mode=mode, allow_pickle=False)
        return mapped

    def mapped(self, piece: Piece) -> Array:
        """Return the rows of a piece, mapped from disk."""
        return self.opened()[slice(*piece)]

    def read(self, piece: Piece) -> Array:
        """Return the rows of a piece, in memory."""
        with self.file.open("rb") as opened:
            opened.seek(self._offset(piece.first))
            content = opened.read(piece.rows * self._row_bytes)
        return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])

    def _digest(self, piece: Piece) -> str:
        """Return the digest of a piece's values.

        Raises:
            OSError: if the file is missing, cut short, or holds an array of another form.
        """
        digest, left = hashlib.sha256(), piece.rows * self._row_bytes
        with self.file.open("rb") as opened:
            if piece.stop > self.shape[0] or opened.read(len(self._header)) != self._header:
                raise OSError(f"{self.file} holds another array")
            opened.seek(self._offset(piece.first))
            while left and (content := opened.read(min(left, _READ_BYTES))):
                digest.update(content)
                left -= len(content)
        if left:
            raise OSError(f"{self.file} is cut short")
        return digest.hexdigest()

    def _allocate(self, opened: BinaryIO) -> None:
        if hasattr(os, "posix_fallocate"):
            opened.truncate(self._bytes)
            os.posix_fallocate(opened.fileno(), 0, self._bytes)
            return
        opened.seek(0, os.SEEK_END)
        while (left := self._bytes - opened.tell()) > 0:
            opened.write(bytes(min(left, _READ_BYTES)))
        opened.truncate(self._bytes)

    def _offset(self, row: int) -> int:
        return len(self._header) + row * self._row_bytes
