"""Build, continue or repair a prepared store, decoded or packed.

A store is complete when it appears: it is built under another name, shard by shard. Before each use
the digest of every shard is computed and compared; only damaged shards are made again. What an
earlier store of the same format holds is copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.manifests.manifest import Progress
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoder_version import decoder_version
from patchline.pipeline.data.store import decoding_worker
from patchline.pipeline.data.store.decoding_processes import decoder
from patchline.pipeline.data.store.packed_files import PackedFiles, packed
from patchline.pipeline.data.store.store_decoding import StoredImage, read_image
from patchline.pipeline.data.store.store_shards import (
    Contents,
    DecodedFiles,
    Pixels,
    StoreShards,
    StoreSpec,
    read_contents,
)
from patchline.pipeline.errors import StorageError
from patchline.pipeline.workers.missing_data import stays_here
from patchline.pipeline.workers.worker_parts import number_of_parts
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.resumable_work import EarlierResult, EarlierRows, Piece

PACKED = "-packed"
BUILDING = ".building-"
"""Start of the name of a store that is not complete; its key follows."""
DRAFT_FILE = "from_a_scan"
"""In a store that a scan has made; it is removed once its images are in another store."""
_LOCKS = ".locks"


def lock_of(store: Path) -> Path:
    """Return the file whose lock a process holds while it builds or repairs a store."""
    return store.parent / _LOCKS / store.name.removeprefix(BUILDING)


def remove_drafts(stores: Path) -> None:
    """Remove the stores that scans have made and no run has completed."""
    for marker in stores.glob(f"{BUILDING}*/{DRAFT_FILE}"):
        with contextlib.suppress(OSError), file_locks.try_lock(lock_of(marker.parent)) as free:
            if free:
                shutil.rmtree(marker.parent)


@dataclass(frozen=True)
class StoreSource(ABC):
    """What a store is made of."""

    rows: pd.DataFrame
    root: Path
    spec: StoreSpec
    stores: Path
    on_progress: Progress | None

    @cached_property
    def contents(self) -> Contents:
        """The digests of the files, in their order."""
        return np.frombuffer(bytes.fromhex("".join(self.rows["sha256"])), np.uint8).reshape(-1, 32)

    @property
    @abstractmethod
    def ending(self) -> str:
        """What the name of a store of this kind ends with."""

    @cached_property
    def store(self) -> Path:
        """The folder of the store once it is complete."""
        return self.stores / self.key_of(self.contents)

    @property
    def building(self) -> Path:
        """The folder of the store until then."""
        return self.stores / f"{BUILDING}{self.store.name}"

    def key_of(self, contents: Contents) -> str:
        """Return the name of a store of files with these digests, decoded like this."""
        spec = self.spec
        formatted = [spec.channels, spec.height, spec.width, spec.resize]
        mapping = [] if spec.mapping.is_plain else [spec.mapping.json()]
        described = json.dumps([*decoder_version(), *formatted, *mapping])
        digest = hashlib.sha256(described.encode())
        digest.update(contents.tobytes().hex().encode())
        return digest.hexdigest()[:32] + self.ending

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the files."""
        return list(self.rows["path"])

    def stored_image(self, row: int) -> StoredImage:
        """Return an image of the store."""
        return StoredImage(row, self.paths[row], self.contents[row].tobytes().hex())

    def packed(self, row: int) -> bytes:
        """Return an image as a store of packed images keeps it."""
        with read_image(self.root, self.stored_image(row), self.spec) as image:
            return packed(image, keep_file=self.spec.mapping.is_plain)


@dataclass(frozen=True)
class StoreBuild(StoreSource):
    """What a store on this machine is built from."""

    fewest: int
    """Child processes decode so many images or more."""

    @abstractmethod
    def files(self, folder: Path, count: int | None = None) -> StoreShards:
        """Return the files of a store, of this one's number of images if none is given."""

    @abstractmethod
    def _write(self, folder: Path, incomplete: list[Piece], *, fresh: bool) -> None:
        """Write the incomplete shards one after another; the others are left as they are."""

    def is_intact(self) -> bool:
        """Return whether the store is there, undamaged."""
        return not self.files(self.store).incomplete()

    def finish(self, *, fresh: bool) -> bool:
        """Build, continue or repair the store, and return whether nothing had to be done."""
        store, building = self.store, self.building
        if not fresh and store.is_dir():
            files = self.files(store)
            incomplete = files.incomplete()
            if incomplete:
                unrecorded = set(incomplete) - files.finished.recorded().keys()
                files.finished.warn(len(unrecorded), len(files.shards()))
                self._write(store, incomplete, fresh=False)
            return not incomplete
        if fresh:
            shutil.rmtree(building, ignore_errors=True)
        building.mkdir(exist_ok=True)
        files = self.files(building)
        try:
            self._write(building, files.incomplete(), fresh=fresh)
        except Exception as error:
            nothing_to_keep = len(files.incomplete()) == len(files.shards())
            if nothing_to_keep or isinstance(error, (OSError, StorageError)):  # such as a full disk
                shutil.rmtree(building, ignore_errors=True)
            raise
        _publish(building, store, files.finished.log.name)
        remove_drafts(self.stores)
        return False

    def _earlier(self, folder: Path, incomplete: list[Piece], *, fresh: bool) -> EarlierRows:
        """Return the rows of the incomplete shards that other stores hold."""
        missing = [] if fresh else [each for shard in incomplete for each in self._digests(shard)]
        return EarlierRows(self._earlier_stores(folder), missing)

    def _earlier_stores(self, own: Path) -> Iterator[EarlierResult]:
        """Yield the stores of the format that is built."""
        for folder in sorted(self.stores.iterdir()) if self.stores.is_dir() else ():
            contents = None if folder == own else read_contents(folder)
            if contents is not None and self.key_of(contents) == folder.name.removeprefix(BUILDING):
                files = self.files(folder, len(contents))
                yield EarlierResult([bytes(each) for each in contents], files.finished, files.read)

    def _copies(self, earlier: EarlierRows, shard: Piece) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a shard that other stores hold, and the image as it is kept."""
        copies = earlier.copies(self._digests(shard))
        return ((shard.first + place, image) for place, image in copies)

    def _digests(self, shard: Piece) -> list[bytes]:
        return [bytes(each) for each in self.contents[slice(*shard)]]

    def _counter(self, incomplete: list[Piece]) -> Callable[[], None]:
        """Return what is called for each image that is ready."""
        total = len(self.rows)
        done = total - sum(shard.rows for shard in incomplete)

        def count() -> None:
            nonlocal done
            done += 1
            if self.on_progress:
                self.on_progress(done, total)

        return count


class DecodedBuild(StoreBuild):
    """Builds a store of decoded images."""

    ending = ""

    def files(self, folder: Path, count: int | None = None) -> DecodedFiles:
        """Return the files of a store, of this one's number of images if none is given."""
        return DecodedFiles(folder, self.spec.shape(len(self.rows) if count is None else count))

    def _write(self, folder: Path, incomplete: list[Piece], *, fresh: bool) -> None:
        files, count = self.files(folder), self._counter(incomplete)
        earlier = self._earlier(folder, incomplete, fresh=fresh)
        files.begin(self.contents, incomplete)
        images: Pixels = files.images.opened("r+")
        left = sum(shard.rows for shard in incomplete)
        divided = number_of_parts(left, decoding_worker.FEWEST_IMAGES_OF_PART) > 1
        if divided and not stays_here(self.root, self.paths):
            self._write_by_workers(files, images, incomplete, earlier, count)
            return
        with decoder(files.images.file, images, self.root, self.spec, left, self.fewest) as decode:
            for shard in incomplete:
                copied, others = self._copied(images, earlier, shard)
                for _ in chain(copied, decode([self.stored_image(row) for row in others])):
                    count()
                files.finished.add(shard)

    def _copied(
        self, images: Pixels, earlier: EarlierRows, shard: Piece
    ) -> tuple[set[int], list[int]]:
        """Copy the rows of a shard that other stores hold; return these, and the others."""
        copied = set[int]()
        for row, image_HWC in self._copies(earlier, shard):
            images[row] = image_HWC
            copied.add(row)
        return copied, [row for row in range(*shard) if row not in copied]

    def _write_by_workers(
        self,
        files: DecodedFiles,
        images: Pixels,
        incomplete: list[Piece],
        earlier: EarlierRows,
        count: Callable[[], None],
    ) -> None:
        """Let workers decode, each a range of the rows that no other store holds."""
        rows: list[int] = []
        for shard in incomplete:
            copied, others = self._copied(images, earlier, shard)
            rows += others
            for _ in copied:
                count()
        waiting = list(incomplete)
        stored = [self.stored_image(row) for row in rows]
        for row, image in decoding_worker.decoded(self.root, stored, self.spec) if rows else ():
            images[row] = image
            count()
            while waiting and waiting[0].stop <= row + 1:
                files.finished.add(waiting.pop(0))
        for shard in waiting:  # whose last rows were copied
            files.finished.add(shard)


class PackedBuild(StoreBuild):
    """Builds a store of packed images, each read and decoded once to see which form is smaller."""

    ending = PACKED

    def files(self, folder: Path, count: int | None = None) -> PackedFiles:
        """Return the files of a store, of this one's number of images if none is given."""
        return PackedFiles(folder, self.spec, len(self.rows) if count is None else count)

    def _write(self, folder: Path, incomplete: list[Piece], *, fresh: bool) -> None:
        files, count = self.files(folder), self._counter(incomplete)
        earlier = self._earlier(folder, incomplete, fresh=fresh)
        files.begin(self.contents, incomplete)
        with threads() as pool:
            for shard in incomplete:
                images = dict[int, bytes]()
                for row, image in self._copies(earlier, shard):
                    images[row] = bytes(image)  # a view would keep the whole shard in memory
                    count()
                others = [row for row in range(*shard) if row not in images]
                for row, image in zip(others, pool.map(self.packed, others), strict=True):
                    images[row] = image
                    count()
                files.write(shard, [images[row] for row in range(*shard)])


def _publish(building: Path, store: Path, log: str) -> None:
    """Move a new store to its place; readers of a replaced file keep their open copy.

    Args:
        building: the folder of the new store.
        store: its place, where a damaged store may be.
        log: the name of the file that tells which shards are finished.
    """
    if not store.is_dir():
        building.rename(store)
        return
    (store / log).unlink(missing_ok=True)
    for file in sorted(building.iterdir(), key=lambda file: file.name == log):
        file.replace(store / file.name)
    building.rmdir()
