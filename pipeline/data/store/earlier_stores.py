"""Rows that earlier stores have decoded already, and the removal of drafts of stores."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from patchline.pipeline.data.store.store_shards import Contents, Shard, StoreShards, read_contents
from patchline.pipeline.files import file_locks

logger = logging.getLogger(__name__)

BUILDING = ".building-"
"""Start of the name of a store that is not complete; its key follows."""
DRAFT_FILE = "from_a_scan"
"""In a store that a scan has made; it is removed once its images are in another store."""
_LOCKS = ".locks"


class EarlierStores:
    """The stores of the same format whose rows can be copied instead of decoded.

    Args:
        stores: the folder of all stores.
        key_of: returns the name of a store with these contents, in the format that is built.
        files_of: returns the files of a store with so many images.
        wanted: the digests of the files that are needed (n, 32).
        own: the folder that is built.
    """

    def __init__(
        self,
        stores: Path,
        key_of: Callable[[Contents], str],
        files_of: Callable[[Path, int], StoreShards],
        needed: Contents,
        own: Path,
    ) -> None:
        self._found: dict[bytes, tuple[StoreShards, int]] = {}
        self._intact: dict[tuple[Path, Shard], bool] = {}
        missing = {bytes(each) for each in needed}
        for folder in sorted(stores.iterdir()) if stores.is_dir() else ():
            if not missing:
                break
            contents = None if folder == own else read_contents(folder)
            if contents is None or key_of(contents) != folder.name.removeprefix(BUILDING):
                continue
            files = files_of(folder, len(contents))
            for row, each in enumerate(map(bytes, contents)):
                if each in missing:
                    self._found[each] = files, row
                    missing.remove(each)

    def images_of(self, contents: Contents, shard: Shard) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a shard that are known, and the image as it is kept.

        Args:
            contents: the digests of the files of the whole store (N, 32).
            shard: of the store that is built.
        """
        sources: dict[tuple[Path, Shard], tuple[StoreShards, list[tuple[int, int]]]] = {}
        for row in range(*shard):
            digest = bytes(contents[row])
            if digest in self._found:
                files, found = self._found[digest]
                source = files.shard_of(found)
                rows = sources.setdefault((files.folder, source), (files, []))[1]
                rows.append((row, found - source.first))
        for (_, source), (files, rows) in sources.items():
            images = list[tuple[int, Any]]()
            if self._is_intact(files, source):
                with contextlib.suppress(OSError, ValueError, IndexError):  # removed meanwhile
                    held = files.read(source)
                    images = [(row, held[place]) for row, place in rows]
            yield from images

    def _is_intact(self, files: StoreShards, shard: Shard) -> bool:
        key = files.folder, shard
        if key not in self._intact:
            self._intact[key] = False
            with contextlib.suppress(OSError):
                self._intact[key] = files.is_intact(shard)
        return self._intact[key]


def lock_of(store: Path) -> Path:
    """Return the file whose lock a process holds while it builds or repairs a store."""
    return store.parent / _LOCKS / store.name.removeprefix(BUILDING)


def remove_drafts(stores: Path) -> None:
    """Remove the stores that scans have made and no run has completed."""
    for marker in stores.glob(f"{BUILDING}*/{DRAFT_FILE}"):
        with contextlib.suppress(OSError), file_locks.try_lock(lock_of(marker.parent)) as free:
            if free:
                shutil.rmtree(marker.parent)
