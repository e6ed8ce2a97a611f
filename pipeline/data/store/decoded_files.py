"""The files of a store of decoded images: one array, memory-mapped, in shards with a digest each.

`images.npy` holds all images, so that a shuffled batch is one read of one memory-mapped array. A
shard is a range of its rows.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np

from patchline.pipeline.data.store.store_shards import Contents, Pixels, Shape, Shard, StoreShards

IMAGES_FILE = "images.npy"
_PIECE_BYTES = 1 << 20
_MOST_OF_THE_DISK = 0.9


class DecodedFiles(StoreShards):
    """The array of a store that is complete, being built, or damaged."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder, shape)
        header = io.BytesIO()
        described = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        self._header = header.getvalue()
        self._bytes = len(self._header) + shape[0] * self.row_bytes

    @property
    def images(self) -> Path:
        """The array of all images."""
        return self.folder / IMAGES_FILE

    def bytes_to_allocate(self) -> int:
        """Return how many bytes of the disk the array needs beside those that it has."""
        try:
            held = self.images.stat().st_blocks * 512
        except OSError:
            held = 0
        return max(0, self._bytes - held)

    def fit_the_disk(self, copies: int = 1) -> bool:
        """Return whether so many of them would take at most nine tenths of the free space."""
        place = self.folder if self.folder.is_dir() else self.folder.parent
        free = shutil.disk_usage(place).free
        return copies * self.bytes_to_allocate() <= _MOST_OF_THE_DISK * free

    def incomplete(self) -> list[Shard]:
        """Return the shards that are missing, cut short, or do not match their digest."""
        return super().incomplete() if self._has_the_shape() else self.shards()

    def is_intact(self, shard: Shard) -> bool:
        """Return whether a shard is complete and matches its digest."""
        return self._has_the_shape() and super().is_intact(shard)

    def begin(self, contents: Contents, incomplete: list[Shard]) -> None:
        """Make the files ready for writing shards.

        The space is allocated now: a full disk is then an error here, not a crash later.
        """
        super().begin(contents, incomplete)
        with self.images.open("ab"):
            pass
        with self.images.open("r+b") as opened:
            opened.truncate(self._bytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(opened.fileno(), 0, self._bytes)
            else:
                self._write_zeros(opened, incomplete)
            opened.seek(0)
            opened.write(self._header)

    def read(self, shard: Shard) -> Pixels:
        """Return the images of a shard."""
        with self.images.open("rb") as opened:
            opened.seek(self._offset(shard))
            count = (shard.stop - shard.first) * self.row_bytes
            return np.frombuffer(opened.read(count), np.uint8).reshape(-1, *self.shape[1:])

    def _has_the_shape(self) -> bool:
        """Return whether there is an array of the right shape, complete or not."""
        try:
            with self.images.open("rb") as opened:
                return opened.read(len(self._header)) == self._header
        except OSError:
            return False

    def _write_zeros(self, opened: BinaryIO, incomplete: list[Shard]) -> None:
        for shard in incomplete:
            opened.seek(self._offset(shard))
            opened.write(bytes((shard.stop - shard.first) * self.row_bytes))

    def _offset(self, shard: Shard) -> int:
        return len(self._header) + shard.first * self.row_bytes

    def _matches(self, shard: Shard, sha256: str) -> bool:
        return self._digest_and_missing(shard) == (sha256, 0)

    def _digest(self, shard: Shard) -> str:
        return self._digest_and_missing(shard)[0]

    def _digest_and_missing(self, shard: Shard) -> tuple[str, int]:
        """Return the digest of a shard's pixels, and how many bytes are missing."""
        digest, left = hashlib.sha256(), (shard.stop - shard.first) * self.row_bytes
        with self.images.open("rb") as opened:
            opened.seek(self._offset(shard))
            while left and (piece := opened.read(min(left, _PIECE_BYTES))):
                digest.update(piece)
                left -= len(piece)
        return digest.hexdigest(), left
