"""The prepared store: every image decoded once, as uint8 in one memory-mapped array.

A store is addressed by its content: the images, their order, the size, and the decoder's version,
source and libraries. So runs with the same data share one store. A store is complete when it
appears. Before each use the digest of every shard is computed and compared; only damaged shards are
decoded again. Images that an earlier store of the same format holds are copied, not decoded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.child_processes import FEWEST_FILES, pay_off, processors
from pipeline.data.decoder_version import decoder_version
from pipeline.data.decoding_processes import DecodingProcesses, WantedImage, decode_into
from pipeline.data.earlier_stores import BUILDING, EarlierStores, lock_of, note_use, remove_unused
from pipeline.data.manifest import Progress
from pipeline.data.resizing import ResizePolicy
from pipeline.data.store_files import (
    CONTENTS_FILE,
    IMAGES_FILE,
    SHARDS_FILE,
    Contents,
    Pixels,
    Shard,
    StoreFiles,
)
from pipeline.errors import StorageError
from pipeline.files import file_locks
from pipeline.files.atomic_files import storage_errors
from pipeline.workspace import make_folder

logger = logging.getLogger(__name__)

__all__ = ["Pixels", "StoreSpec", "channel_statistics", "open_images", "prepare"]

Decode = Callable[[Sequence[WantedImage]], Iterator[None]]
"""Decodes images into their rows; yields for each that is done."""


@dataclass(frozen=True)
class StoreSpec:
    """The format of every image of a store."""

    channels: int
    height: int
    width: int
    resize: ResizePolicy


def prepare(
    rows: pd.DataFrame,
    root: Path,
    spec: StoreSpec,
    stores: Path,
    on_progress: Progress | None = None,
    *,
    fresh: bool = False,
    fewest: int = FEWEST_FILES,
) -> tuple[Path, bool]:
    """Decode the usable rows of a manifest into a store, unless an intact one exists.

    Args:
        rows: the usable rows of the manifest.
        root: the folder or archive that their paths are relative to.
        spec: the format of the decoded images.
        stores: the folder of all stores.
        on_progress: called with the number of images that are ready.
        fresh: decode every image again, whatever exists.
        fewest: child processes are used for so many images or more.

    Returns:
        The store's folder, and whether it existed already.

    Raises:
        DataError: if a file changed since it was scanned.
        StorageError: if the disk is full or read-only.
    """
    build = _Build(rows, root, spec, stores, on_progress, fewest)
    store = stores / build.key
    if not fresh and not build.files(store).incomplete():
        note_use(store)
        return store, True
    with storage_errors(store):
        make_folder(stores)
        with file_locks.try_lock(lock_of(store)) as free:
            if free:
                return store, build.finish(store, fresh=fresh)
        logger.warning("another process is decoding these images; waiting for it")
        with file_locks.locked(lock_of(store)):
            return store, build.finish(store, fresh=fresh)


@dataclass(frozen=True)
class _Build:
    """What a store is built from."""

    rows: pd.DataFrame
    root: Path
    spec: StoreSpec
    stores: Path
    on_progress: Progress | None
    fewest: int
    """Child processes decode so many images or more."""

    @cached_property
    def contents(self) -> Contents:
        return np.frombuffer(bytes.fromhex("".join(self.rows["sha256"])), np.uint8).reshape(-1, 32)

    @cached_property
    def key(self) -> str:
        return _key(self.contents, self.spec)

    def files(self, folder: Path) -> StoreFiles:
        spec = self.spec
        return StoreFiles(folder, (len(self.rows), spec.height, spec.width, spec.channels))

    def finish(self, store: Path, *, fresh: bool) -> bool:
        """Build, continue or repair a store, and return whether nothing had to be done."""
        if not fresh and store.is_dir():
            files = self.files(store)
            incomplete = files.incomplete()
            if incomplete:
                logger.warning(
                    "%d of the %d shards of the images decoded before are damaged; these are "
                    "decoded again",
                    len(incomplete),
                    len(files.shards()),
                )
                self._write(files, incomplete)
            note_use(store)
            return not incomplete
        building = self.stores / f"{BUILDING}{self.key}"
        if fresh:
            shutil.rmtree(building, ignore_errors=True)
        building.mkdir(exist_ok=True)
        files = self.files(building)
        try:
            self._write(files, files.incomplete(), fresh=fresh)
        except Exception as error:
            nothing_to_keep = len(files.incomplete()) == len(files.shards())
            if nothing_to_keep or isinstance(error, (OSError, StorageError)):  # such as a full disk
                shutil.rmtree(building, ignore_errors=True)
            raise
        _publish(building, store)
        remove_unused(self.stores, [store])
        return False

    def _write(self, files: StoreFiles, incomplete: list[Shard], *, fresh: bool = False) -> None:
        """Write the incomplete shards one after another; the others are left as they are."""
        count = sum(shard.stop - shard.first for shard in incomplete)
        done = len(self.rows) - count
        wanted = [self.contents[shard.first : shard.stop] for shard in incomplete]
        missing = np.concatenate(wanted) if wanted and not fresh else self.contents[:0]
        earlier = EarlierStores(
            self.stores, partial(_key, spec=self.spec), files.shape, missing, files.folder
        )
        files.begin(self.contents, incomplete)
        images: Pixels = np.load(files.images, mmap_mode="r+", allow_pickle=False)
        with self._decoder(files, images, count) as decode:
            for shard in incomplete:
                rows = slice(shard.first, shard.stop)
                copied = earlier.copy(self.contents[rows], images[rows])
                others = [row for row in range(*shard) if row - shard.first not in copied]
                for _ in chain(copied, decode([self._wanted(row) for row in others])):
                    done += 1
                    if self.on_progress:
                        self.on_progress(done, len(self.rows))
                files.seal(shard)

    @contextmanager
    def _decoder(self, files: StoreFiles, images: Pixels, count: int) -> Iterator[Decode]:
        """Return what decodes images into their rows, by processes if there are many."""
        if pay_off(count, self.fewest):
            with DecodingProcesses(files.images, self.root, self.spec.resize) as children:
                yield children.decode
            return
        with ThreadPoolExecutor(max_workers=min(8, 2 * processors())) as pool:

            def decode(wanted: Sequence[WantedImage]) -> Iterator[None]:
                one = partial(decode_into, images, self.root, resize=self.spec.resize)
                return pool.map(one, wanted)

            yield decode

    def _wanted(self, row: int) -> WantedImage:
        return WantedImage(row, self.paths[row], self.contents[row].tobytes().hex())

    @cached_property
    def paths(self) -> list[str]:
        return list(self.rows["path"])


def open_images(store: Path) -> Pixels:
    """Return the images (N, H, W, C), mapped from disk and read-only."""
    images: Pixels = np.load(store / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
    note_use(store)
    return images


def channel_statistics(
    images: Pixels, rows: np.ndarray[Any, Any], piece: int = 2**21
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation by channel on the scale 0 to 1, over the given rows.

    The values from 0 to 255 are counted, so the sums are integers and exact.

    Args:
        images: the store, mapped from disk.
        rows: the images to measure; at least one.
        piece: bytes of images to process at once; at most 8 times as much memory is used.
    """
    channels = images.shape[-1]
    together = max(1, piece // max(1, images[0].nbytes))
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(rows), together):
        pixels = images[rows[start : start + together]].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += _histogram(pixels[:, channel], piece)
    statistics = [_mean_and_deviation(histogram.tolist()) for histogram in counts]
    floor = 1 / 255  # do not amplify a channel without contrast
    return (
        tuple(round(mean, 6) for mean, _ in statistics),
        tuple(round(max(deviation, floor), 6) for _, deviation in statistics),
    )


def _histogram(values: Pixels, piece: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count the values piece by piece, because bincount widens each to eight bytes."""
    pieces = (values[start : start + piece] for start in range(0, len(values), piece))
    return sum((np.bincount(part, minlength=256) for part in pieces), start=np.zeros(256, np.int64))


def _mean_and_deviation(histogram: list[int]) -> tuple[float, float]:
    """Return both on the scale 0 to 1, computed from integers."""
    count = sum(histogram)
    total = sum(value * times for value, times in enumerate(histogram))
    squares = sum(value * value * times for value, times in enumerate(histogram))
    return total / (255 * count), math.sqrt(count * squares - total * total) / (255 * count)


def _key(contents: Contents, spec: StoreSpec) -> str:
    digest = hashlib.sha256(json.dumps([*decoder_version(), *vars(spec).values()]).encode())
    digest.update(contents.tobytes().hex().encode())
    return digest.hexdigest()[:32]


def _publish(building: Path, store: Path) -> None:
    """Move a new store to its place; readers of a replaced file keep their open copy."""
    if not store.is_dir():
        building.rename(store)
        return
    (store / SHARDS_FILE).unlink(missing_ok=True)
    for name in (IMAGES_FILE, CONTENTS_FILE, SHARDS_FILE):
        (building / name).replace(store / name)
    building.rmdir()
