"""Build a streamed store: decode a shard, send it to the object store, and forget it.

So the disk holds one or two shards at a time. A build that was killed continues with the shards
that are not there yet; those of other splits hold other images, and are not used.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.store.store_builds import PACKED, StoreSource
from patchline.pipeline.data.store.store_decoding import read_image
from patchline.pipeline.data.store.streamed_records import SHARDS, Rows, StreamedIndex
from patchline.pipeline.errors import StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import lease
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.shared_files import SharedFiles, content_key

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
        with lease.held(f"decode-{self.store.name}-{holder}"):  # the shards have no name yet
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
