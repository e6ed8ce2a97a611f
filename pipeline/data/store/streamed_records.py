"""A store whose images stay on the object store of a shared workspace, and are read by ranges.

For a store that is larger than the disk of a machine. Its shards are objects, named by their
content; the folder of the store holds what it takes to find an image in them:

    streamed.json      the shape, how images are resized, and the digest of each shard
    positions.npy      int64 (N): which image of all shards a row is
    sizes.npy          uint32 (N): bytes of the image at each position
    checksums.npy      uint32 (N): CRC-32 of these bytes

An image is kept as its pixels, or as in a store of packed images (`packed_files`). The images to
train on come first, in the order of their rows, then the images to validate on, in the order in
which they are used: so what is needed together lies together, and is read in large pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.sealed_files import FileDigest
from patchline.pipeline.workspace.workspace import Workspace, workspace_of

STREAMED_FILE = "streamed.json"
_POSITIONS, _SIZES, _CHECKSUMS = "positions.npy", "sizes.npy", "checksums.npy"
SHARDS = "shards/"
"""Followed by the name of a store: the name of its shards in the workspace."""
_MOST_UNUSED = 0.04
"""Bytes that are read without need, of those that are needed, so that there are fewer requests."""
_MOST_AT_ONCE = 8 << 20
"""Bytes of a request, unless one image has more."""
_REQUESTS = 16
"""Requests at the same time."""

Rows = np.ndarray[Any, np.dtype[np.int64]]
Numbers = np.ndarray[Any, np.dtype[np.uint32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class StreamedIndex(FrozenModel):
    """What a streamed store is made of."""

    shape: tuple[int, int, int, int]
    """The number of images, and their height, width and channels."""
    resize: ResizePolicy
    packed: bool
    """Whether images are kept as files, rather than as pixels."""
    rows_of_a_shard: int
    """The number of rows of each shard but the last."""
    shards: tuple[FileDigest, ...]

    @classmethod
    def read(cls, folder: Path) -> StreamedIndex | None:
        """Return the index of a store; None if the folder has none."""
        return cls.from_file_or_none(folder / STREAMED_FILE)

    def write(self, folder: Path, positions: Rows, sizes: Numbers, checksums: Numbers) -> None:
        """Write the index and the tables beside it; the index is the last."""
        for name, table in ((_POSITIONS, positions), (_SIZES, sizes), (_CHECKSUMS, checksums)):
            np.save(folder / name, table, allow_pickle=False)
        self.to_file(folder / STREAMED_FILE)


class Records(NamedTuple):
    """Images as they are kept, one after another."""

    rows: Rows
    """The images' rows of the store, in the order in which they lie in the shards."""
    starts: Rows
    """The position in `data` at which each image begins, and the end of the last."""
    data: Bytes


class _ShardRange(NamedTuple):
    """A range of a shard that holds some of the records in question."""

    shard: int
    start: int
    stop: int
    first: int
    last: int
    """The last of the records, counted from the first one that is asked for."""


class StreamedRecords:
    """The images of a streamed store, as they are kept, read from the workspace.

    Args:
        folder: the folder of the store.

    Raises:
        ConfigError: if no shared workspace is in use.
        DataError: if the folder is damaged.
    """

    def __init__(self, folder: Path) -> None:
        index = StreamedIndex.read(folder)
        try:
            tables = [np.load(folder / name, mmap_mode="r") for name in (_POSITIONS, _SIZES)]
            self._checksums: Numbers = np.load(folder / _CHECKSUMS, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} is damaged ({error}). Run again to repair it.") from error
        if index is None:
            raise DataError(f"{folder / STREAMED_FILE} is damaged. Run again to repair it.")
        self.folder, self.index = folder, index
        self._positions: Rows = tables[0]
        self._sizes: Numbers = tables[1]
        self.bytes_read = 0
        """Bytes that this process has received."""

    def sizes_of(self, rows: Rows) -> Rows:
        """Return the number of bytes of each row."""
        sizes: Rows = self._sizes[self._positions[rows]].astype(np.int64)
        return sizes

    def in_order(self, rows: Rows) -> Rows:
        """Return the rows in the order in which they lie in the shards, each once."""
        distinct = np.unique(rows)
        ordered: Rows = distinct[np.argsort(self._positions[distinct])]
        return ordered

    def read(self, rows: Rows) -> Records:
        """Return some rows, each once.

        Raises:
            DataError: if a shard is missing or damaged.
            StorageError: if the object store does not answer.
        """
        ordered = self.in_order(rows)
        positions = self._positions[ordered]
        starts = np.concatenate(([0], np.cumsum(self._sizes[positions], dtype=np.int64)))
        data: Bytes = np.empty(int(starts[-1]), np.uint8)
        records = Records(ordered, starts, data)

        def fetch(request: _ShardRange) -> None:
            self._fetch(request, positions, records)

        requests = list(self._requests(positions))
        if len(requests) == 1:
            fetch(requests[0])
        else:
            for done in [self._pool.submit(fetch, each) for each in requests]:
                done.result()
        return records

    def _requests(self, positions: Rows) -> Iterator[_ShardRange]:
        """Yield the ranges that hold these positions, which are sorted."""
        if not len(positions):
            return
        begins = self._begins[positions]
        ends = begins + self._sizes[positions]
        shards = positions // self.index.rows_of_a_shard
        gaps = begins[1:] - ends[:-1]
        is_same_shard = shards[1:] == shards[:-1]
        is_joined = is_same_shard & (gaps <= _longest_gap(gaps[is_same_shard], ends - begins))
        first = 0
        for last in range(len(positions)):
            is_end = last + 1 == len(positions) or not is_joined[last]
            if is_end or ends[last + 1] - begins[first] > _MOST_AT_ONCE:
                yield _ShardRange(
                    int(shards[first]), int(begins[first]), int(ends[last]), first, last
                )
                first = last + 1

    def _fetch(self, request: _ShardRange, positions: Rows, records: Records) -> None:
        """Read a range into the places of its records, after comparing their checksums."""
        sha256 = self.index.shards[request.shard].sha256
        content = self._workspace.read_content(sha256, request.start, request.stop)
        if content is None:
            raise self._damaged(sha256, "is missing")
        self.bytes_read += len(content)
        view = memoryview(content)
        for number in range(request.first, request.last + 1):
            position = int(positions[number])
            start = int(self._begins[position]) - request.start
            record = view[start : start + int(self._sizes[position])]
            if zlib.crc32(record) != self._checksums[position]:
                raise self._damaged(sha256, "does not match its checksums")
            place = slice(int(records.starts[number]), int(records.starts[number + 1]))
            records.data[place] = np.frombuffer(record, np.uint8)

    def _damaged(self, sha256: str, what: str) -> DataError:
        """Let the workspace forget a shard, so that the next run makes it again."""
        shard = self._workspace.forget_content(sha256, f"{SHARDS}{self.folder.name}")
        return DataError(f"{shard} {what}. Run again (or `--resume`) to repair it.")

    @cached_property
    def _begins(self) -> Rows:
        """Where the image at each position begins in its shard."""
        sizes, rows = self._sizes.astype(np.int64), self.index.rows_of_a_shard
        begins: Rows = np.cumsum(sizes) - sizes
        begins -= np.repeat(begins[::rows], rows)[: len(begins)]
        return begins

    @cached_property
    def _workspace(self) -> Workspace:
        workspace = workspace_of(self.folder)
        if not workspace.uri:
            raise ConfigError(
                f"The images of {self.folder} are on the object store of a shared workspace. Give "
                "its address with --workspace."
            )
        return workspace

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_REQUESTS)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process opens the store with."""
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]  # as when it was made


def _longest_gap(gaps: Rows, sizes: Rows) -> int:
    """Return the longest gap to read over, so that few bytes are read without need."""
    ordered = np.sort(gaps)
    allowed = np.cumsum(ordered) <= _MOST_UNUSED * float(sizes.sum())
    count = int(allowed.sum())
    if count == len(ordered):
        return int(ordered[-1]) if len(ordered) else 0
    longest, next_gap = int(ordered[count - 1]) if count else 0, int(ordered[count])
    return longest if longest < next_gap else max(0, next_gap - 1)
