"""The files of one prepared store: an array of images, in shards that each have a digest.

`images.npy` holds all images, so that a shuffled batch is one read of one memory-mapped array. A
shard is a range of its rows of about 64 MiB. `shards.jsonl` has a line for each shard that is
complete: its first row, the row after its last, and the SHA-256 digest of its pixels.
`contents.npy` (N, 32) holds the SHA-256 digest of the file that each row was decoded from.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pipeline.files.atomic_files import replacing, write_text

SHARD_BYTES = 1 << 26
IMAGES_FILE, SHARDS_FILE, CONTENTS_FILE = "images.npy", "shards.jsonl", "contents.npy"
_PIECE_BYTES = 1 << 20

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Contents = np.ndarray[Any, np.dtype[np.uint8]]
"""The SHA-256 digest of each file (N, 32)."""


class Shard(NamedTuple):
    """A range of rows."""

    first: int
    stop: int


class StoreFiles:
    """The files of a store that is complete, being built, or damaged."""

    def __init__(self, folder: Path, shape: tuple[int, int, int, int]) -> None:
        self.folder = folder
        self.shape = shape
        header = io.BytesIO()
        described = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        self._header = header.getvalue()
        self._row_bytes = shape[1] * shape[2] * shape[3]
        self._bytes = len(self._header) + shape[0] * self._row_bytes

    def shards(self) -> list[Shard]:
        """Return all shards, whether they exist or not."""
        rows = max(1, SHARD_BYTES // self._row_bytes)
        firsts = range(0, self.shape[0], rows)
        return [Shard(first, min(first + rows, self.shape[0])) for first in firsts]

    def has_files(self) -> bool:
        """Return whether there is an array of the right shape, complete or not."""
        try:
            with (self.folder / IMAGES_FILE).open("rb") as opened:
                return opened.read(len(self._header)) == self._header
        except OSError:
            return False

    def incomplete(self) -> list[Shard]:
        """Return the shards that are missing, cut short, or do not match their digest."""
        if not self.has_files():
            return self.shards()
        recorded = self._recorded()
        return [shard for shard in self.shards() if not self._matches(shard, recorded.get(shard))]

    def is_intact(self, shard: Shard) -> bool:
        """Return whether a shard is complete and matches its digest."""
        return self.has_files() and self._matches(shard, self._recorded().get(shard))

    def shard_of(self, row: int) -> Shard:
        """Return the shard that holds a row."""
        rows = max(1, SHARD_BYTES // self._row_bytes)
        first = row // rows * rows
        return Shard(first, min(first + rows, self.shape[0]))

    def begin(self, contents: Contents, incomplete: list[Shard]) -> None:
        """Make the files ready for writing shards, and withdraw the digests of incomplete ones.

        The space is allocated now: a full disk is then an error here, not a crash later.
        """
        kept = {k: v for k, v in self._recorded().items() if k not in set(incomplete)}
        write_text(self.folder / SHARDS_FILE, "".join(_line(*each) for each in kept.items()))
        with replacing(self.folder / CONTENTS_FILE) as temporary, temporary.open("wb") as opened:
            np.save(opened, contents, allow_pickle=False)
        with (self.folder / IMAGES_FILE).open("ab"):
            pass
        with (self.folder / IMAGES_FILE).open("r+b") as opened:
            opened.truncate(self._bytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(opened.fileno(), 0, self._bytes)
            else:
                self._write_zeros(opened, incomplete)
            opened.seek(0)
            opened.write(self._header)

    @property
    def images(self) -> Path:
        """The array of all images."""
        return self.folder / IMAGES_FILE

    def seal(self, shard: Shard) -> None:
        """Record the digest of a shard whose images have been written."""
        with (self.folder / SHARDS_FILE).open("a", encoding="utf-8") as opened_shards:
            opened_shards.write(_line(shard, self._digest(shard)[0]))

    def _write_zeros(self, opened: BinaryIO, incomplete: list[Shard]) -> None:
        for shard in incomplete:
            opened.seek(self._offset(shard))
            opened.write(bytes((shard.stop - shard.first) * self._row_bytes))

    def read(self, shard: Shard) -> Pixels:
        """Return the images of a shard."""
        with (self.folder / IMAGES_FILE).open("rb") as opened:
            opened.seek(self._offset(shard))
            count = (shard.stop - shard.first) * self._row_bytes
            return np.frombuffer(opened.read(count), np.uint8).reshape(-1, *self.shape[1:])

    def _offset(self, shard: Shard) -> int:
        return len(self._header) + shard.first * self._row_bytes

    def _recorded(self) -> dict[Shard, str]:
        try:
            lines = (self.folder / SHARDS_FILE).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        return dict(_entries(lines))

    def _matches(self, shard: Shard, sha256: str | None) -> bool:
        if sha256 is None:
            return False
        return self._digest(shard) == (sha256, 0)

    def _digest(self, shard: Shard) -> tuple[str, int]:
        """Return the digest of a shard's pixels, and how many bytes are missing."""
        digest, left = hashlib.sha256(), (shard.stop - shard.first) * self._row_bytes
        with (self.folder / IMAGES_FILE).open("rb") as opened:
            opened.seek(self._offset(shard))
            while left and (piece := opened.read(min(left, _PIECE_BYTES))):
                digest.update(piece)
                left -= len(piece)
        return digest.hexdigest(), left


def read_contents(folder: Path) -> Contents | None:
    """Return the digests of the files that a store was decoded from; None if they are unusable."""
    try:
        contents: Contents = np.load(folder / CONTENTS_FILE, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    usable = contents.dtype == np.uint8 and contents.ndim == 2 and contents.shape[1] == 32  # noqa: PLR2004 - bytes of SHA-256
    return contents if usable else None


def _line(shard: Shard, sha256: str) -> str:
    return json.dumps({"first": shard.first, "stop": shard.stop, "sha256": sha256}) + "\n"


def _entries(lines: list[str]) -> Iterator[tuple[Shard, str]]:
    """Yield the lines that are complete; a killed process may have written half of one."""
    for line in lines:
        try:
            entry = json.loads(line)
            yield Shard(int(entry["first"]), int(entry["stop"])), str(entry["sha256"])
        except (ValueError, TypeError, KeyError):
            continue
