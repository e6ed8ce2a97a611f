"""The shards of a prepared store, complete or not: ranges of rows that each have a digest.

`shards.jsonl` has a line for each shard that is complete: its first row, the row after its last,
and the SHA-256 digest of its bytes. `contents.npy` (N, 32) holds the SHA-256 digest of the file
that each row comes from.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.files.atomic_files import replacing, write_text

SHARD_BYTES = 1 << 26
"""About so many bytes of decoded images are in a shard."""
SHARDS_FILE, CONTENTS_FILE = "shards.jsonl", "contents.npy"

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Shape = tuple[int, int, int, int]
"""Images, height, width, channels."""
Contents = np.ndarray[Any, np.dtype[np.uint8]]
"""The SHA-256 digest of each file (N, 32)."""


class Shard(NamedTuple):
    """A range of rows."""

    first: int
    stop: int


class StoreShards(ABC):
    """The shards of a store that is complete, being built, or damaged.

    Args:
        folder: of the store.
        shape: of all its images, decoded.
    """

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape
        self.row_bytes = shape[1] * shape[2] * shape[3]

    @abstractmethod
    def read(self, shard: Shard) -> Pixels | Sequence[memoryview]:
        """Return the images of a shard, as they are kept."""

    @abstractmethod
    def _matches(self, shard: Shard, sha256: str) -> bool:
        """Return whether the shard's bytes are there, and have this digest."""

    @abstractmethod
    def _digest(self, shard: Shard) -> str:
        """Return the digest of a shard's bytes."""

    def shards(self) -> list[Shard]:
        """Return all shards, whether they exist or not."""
        rows = self.rows_of_a_shard()
        firsts = range(0, self.shape[0], rows)
        return [Shard(first, min(first + rows, self.shape[0])) for first in firsts]

    def shard_of(self, row: int) -> Shard:
        """Return the shard that holds a row."""
        rows = self.rows_of_a_shard()
        first = row // rows * rows
        return Shard(first, min(first + rows, self.shape[0]))

    def incomplete(self) -> list[Shard]:
        """Return the shards that are missing, cut short, or do not match their digest."""
        recorded, shards = self._recorded(), self.shards()
        with ThreadPoolExecutor(processors()) as pool:
            intact = pool.map(lambda shard: self._is_intact(shard, recorded), shards)
            return [shard for shard, is_intact in zip(shards, intact, strict=True) if not is_intact]

    def is_intact(self, shard: Shard) -> bool:
        """Return whether a shard is complete and matches its digest."""
        return self._is_intact(shard, self._recorded())

    def begin(self, contents: Contents, incomplete: list[Shard]) -> None:
        """Record what the store is made of, and withdraw the digests of incomplete shards."""
        kept = {k: v for k, v in self._recorded().items() if k not in set(incomplete)}
        write_text(self.folder / SHARDS_FILE, "".join(_line(*each) for each in kept.items()))
        with replacing(self.folder / CONTENTS_FILE) as temporary, temporary.open("wb") as opened:
            np.save(opened, contents, allow_pickle=False)

    def seal(self, shard: Shard) -> None:
        """Record the digest of a shard whose images have been written."""
        with (self.folder / SHARDS_FILE).open("a", encoding="utf-8") as opened_shards:
            opened_shards.write(_line(shard, self._digest(shard)))

    def seal_all(self) -> None:
        """Record the digests of all shards."""
        with ThreadPoolExecutor(processors()) as pool:
            list(pool.map(self.seal, self.shards()))

    def rows_of_a_shard(self) -> int:
        """Return the number of rows of each shard but the last."""
        return max(1, SHARD_BYTES // self.row_bytes)

    def _is_intact(self, shard: Shard, recorded: dict[Shard, str]) -> bool:
        return shard in recorded and self._matches(shard, recorded[shard])

    def _recorded(self) -> dict[Shard, str]:
        try:
            lines = (self.folder / SHARDS_FILE).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        return dict(_entries(lines))


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
