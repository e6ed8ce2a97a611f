"""An array in a NumPy file that is filled in pieces, so that its computation can be resumed.

Beside `NAME.npy` lies the log of its finished pieces, `NAME.pieces.jsonl`.

Shapes: N rows of any shape.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.finished_pieces import FinishedPieces, Piece

Array = np.ndarray[Any, np.dtype[Any]]

_READ_BYTES = 1 << 20


class ResumableArray:
    """An array (N, ...) on disk, and which of its rows are finished.

    Args:
        file: ends in `.npy`.
        shape: of the whole array.
        dtype: of its values.
        what: its rows are, for a warning: "decoded images".

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
