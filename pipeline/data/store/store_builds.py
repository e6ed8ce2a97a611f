"""Build, continue or repair a prepared store, decoded, packed or streamed.

A store is complete when it appears: it is built under another name, shard by shard. Before each use
the digest of every shard is computed and compared; only damaged shards are made again. What an
earlier store of the same format holds is copied.

A streamed store is decoded shard by shard, each of which is sent to the object store and forgotten,
so the disk holds one or two of them at a time. A build that was killed continues with the shards
that are not there yet; those of other splits hold other images, and are not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from patchline.pipeline.data.store.packed_files import PackedFiles, pack_image
from patchline.pipeline.data.store.store_decoding import StoredImage, read_image
from patchline.pipeline.data.store.store_shards import (
    Contents,
    DecodedFiles,
    Pixels,
    StoreShards,
    StoreSpec,
    read_contents,
)
from patchline.pipeline.data.store.streamed_records import SHARDS, Rows, StreamedIndex
from patchline.pipeline.errors import StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.missing_data import stays_here
from patchline.pipeline.workers.worker_parts import number_of_parts
from patchline.pipeline.workspace import lease
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.resumable_work import EarlierResult, EarlierRows, Piece
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.shared_files import SharedFiles, content_key

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
            return pack_image(image, keep_file=self.spec.mapping.is_plain)


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
        for row, image in (
            decoding_worker.decode_images(self.root, stored, self.spec) if rows else ()
        ):
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


SHARD_BYTES = 1 << 24
"""About so many bytes of decoded images are in a shard: some servers read all of an object, and
then send a range of it."""
_LOG = "shards.jsonl"


class _Sent(FrozenModel):
    """A shard that is on the object store."""

    first: int
    """Its first position."""
    contents: str
    """SHA-256 of the digests of its images in their order, which depends on the splits."""
    digest: FileDigest
    sizes: tuple[int, ...]
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class StreamedBuild(StoreSource):
    """What a streamed store is built from."""

    shared: SharedFiles
    are_packed: bool
    """Whether images are kept as files."""

    @property
    def ending(self) -> str:
        """What the name of a store of this kind ends with."""
        return f"{PACKED if self.are_packed else ''}-streamed"

    def is_intact(self) -> bool:
        """Return whether the store is there, here and in the workspace."""
        index = StreamedIndex.read(self.store)
        return index is not None and is_on(index, self.shared, self.store.name)

    def finish(self, *, fresh: bool) -> bool:
        """Build, continue or repair the store, and return whether nothing had to be done."""
        if not fresh and self.is_intact():
            return True
        machine = f"{socket.gethostname()} {self.stores.resolve()}"
        holder = hashlib.sha256(machine.encode()).hexdigest()[:8]
        with lease.hold_lease(f"decode-{self.store.name}-{holder}"):  # the shards have no name yet
            self._build(fresh=fresh)
        return False

    def _build(self, *, fresh: bool) -> None:
        building = self.building
        with storage_errors(building):
            if fresh:
                shutil.rmtree(building, ignore_errors=True)
            make_folder(building)
        sent = self._send_shards(building)
        index = StreamedIndex(
            shape=self.spec.shape(len(self.rows)),
            resize=self.spec.resize,
            packed=self.are_packed,
            rows_of_a_shard=self._rows_of_a_shard,
            shards=tuple(each.digest for each in sent),
        )
        positions: Rows = np.empty(len(self.rows), np.int64)
        positions[self._order] = np.arange(len(self.rows))
        sizes, checksums = (
            np.concatenate([np.array(column, np.uint32) for column in columns])
            for columns in ([each.sizes for each in sent], [each.checksums for each in sent])
        )
        try:
            self.shared.publish(f"{SHARDS}{self.store.name}", Path(), _by_name(index))
        except FileNotFoundError as error:
            raise StorageError(
                f"Decoded images are missing in {self.shared.uri}: objects were deleted there "
                "while the others were decoded. Run again: only what is missing is decoded again."
            ) from error
        with storage_errors(self.store):
            index.write(building, positions, sizes, checksums)
            (building / _LOG).unlink()
            shutil.rmtree(self.store, ignore_errors=True)
            building.rename(self.store)

    def _send_shards(self, building: Path) -> list[_Sent]:
        """Decode and send the shards; one is sent while the next one is decoded."""
        logged = AppendLog(building / _LOG).new_values(_Sent.model_validate_json)
        earlier = {each.contents: each for each in logged}
        sent, sending, done = list[_Sent](), list[Future[None]](), 0
        with threads() as pool, ThreadPoolExecutor(1) as sender:
            for first in range(0, len(self._order), self._rows_of_a_shard):
                rows = self._order[first : first + self._rows_of_a_shard]
                shard = earlier.get(self._digest(rows))
                if shard is None or not self._is_there(shard):
                    images = list[bytes]()
                    for image in pool.map(self._image, rows.tolist()):
                        images.append(image)
                        if self.on_progress:
                            self.on_progress(done + len(images), len(self.rows))
                    while sending:
                        sending.pop().result()
                    shard = self._written(building, first, rows, images)
                    sending.append(sender.submit(self._send, building, shard))
                done += len(rows)
                sent.append(shard)
            while sending:
                sending.pop().result()
        return sent

    def _image(self, row: int) -> bytes:
        """Return an image as it is kept."""
        if self.are_packed:
            return self.packed(row)
        with read_image(self.root, self.stored_image(row), self.spec) as image:
            return image.resized_HWC.tobytes()

    def _written(self, building: Path, first: int, rows: Rows, images: Sequence[bytes]) -> _Sent:
        file = _shard_file(building, first)
        with storage_errors(file), file.open("wb") as opened:
            opened.writelines(images)
        return _Sent(
            first=first,
            contents=self._digest(rows),
            digest=digest_of(file),
            sizes=tuple(map(len, images)),
            checksums=tuple(map(zlib.crc32, images)),
        )

    def _digest(self, rows: Rows) -> str:
        return hashlib.sha256(self.contents[rows].tobytes()).hexdigest()

    def _send(self, building: Path, shard: _Sent) -> None:
        file = _shard_file(building, shard.first)
        key = content_key(shard.digest.sha256)
        if not self._is_there(shard):
            self.shared.store.upload(file, key)
        AppendLog(building / _LOG).append(shard.model_dump())
        file.unlink()

    def _is_there(self, shard: _Sent) -> bool:
        info = self.shared.store.info(content_key(shard.digest.sha256))
        return info is not None and info.bytes == shard.digest.bytes

    @cached_property
    def _order(self) -> Rows:
        """The row at each position: to train on, to validate on as that is done, and the others."""
        if "split" not in self.rows:
            return np.arange(len(self.rows))
        split = self.rows["split"].to_numpy()
        by_digest = np.lexsort((self.rows["path"], self.rows["sha256"]))
        parts = (
            np.flatnonzero(split == "train"),
            by_digest[split[by_digest] == "validation"],
            np.flatnonzero((split != "train") & (split != "validation")),
        )
        return np.concatenate(parts)

    @property
    def _rows_of_a_shard(self) -> int:
        return max(1, SHARD_BYTES // (self.spec.height * self.spec.width * self.spec.channels))


def is_on(index: StreamedIndex, shared: SharedFiles, store: str) -> bool:
    """Return whether a workspace has the shards of a store, as far as it knows."""
    named = shared.find(f"{SHARDS}{store}")
    return named is not None and named.reference.files == _by_name(index)


def _by_name(index: StreamedIndex) -> dict[str, FileDigest]:
    return {f"{number:06}": digest for number, digest in enumerate(index.shards)}


def _shard_file(building: Path, first: int) -> Path:
    return building / f"shard-{first:09}"
