"""Rows that earlier stores have decoded already, and the removal of stores that nobody uses."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.data.store_files import Contents, Pixels, Shard, StoreFiles, read_contents
from pipeline.files import file_locks

logger = logging.getLogger(__name__)

BUILDING = ".building-"
"""Start of the name of a store that is not complete; its key follows."""
_LOCKS = ".locks"
_KEPT_SECONDS = 14 * 24 * 3600.0
KeyOf = Callable[[Contents], str]
"""Returns the key of a store with these contents, in the format that is being built."""


class EarlierStores:
    """The stores of the same format whose rows can be copied instead of decoded."""

    def __init__(
        self, stores: Path, key_of: KeyOf, shape: tuple[int, ...], wanted: Contents, own: Path
    ) -> None:
        self._found: dict[bytes, tuple[StoreFiles, int]] = {}
        self._intact: dict[tuple[Path, Shard], bool] = {}
        missing = {bytes(each) for each in wanted}
        for folder in sorted(stores.iterdir()) if stores.is_dir() else ():
            if not missing:
                break
            contents = None if folder == own else read_contents(folder)
            if contents is None or key_of(contents) != folder.name.removeprefix(BUILDING):
                continue
            files = StoreFiles(folder, (len(contents), shape[1], shape[2], shape[3]))
            for row, each in enumerate(map(bytes, contents)):
                if each in missing:
                    self._found[each] = files, row
                    missing.remove(each)

    def copy(self, contents: Contents, images: Pixels) -> set[int]:
        """Copy the rows of a shard that are known, and return their positions in it.

        Args:
            contents: the digests of the shard's files (n, 32).
            images: receives the rows (n, H, W, C).
        """
        sources: dict[tuple[Path, Shard], tuple[StoreFiles, list[tuple[int, int]]]] = {}
        for position, each in enumerate(map(bytes, contents)):
            if each in self._found:
                files, row = self._found[each]
                shard = files.shard_of(row)
                rows = sources.setdefault((files.folder, shard), (files, []))[1]
                rows.append((position, row - shard.first))
        copied = set[int]()
        for (_, shard), (files, rows) in sources.items():
            if self._is_intact(files, shard):
                with contextlib.suppress(OSError, ValueError, IndexError):  # removed meanwhile
                    held = files.read(shard)
                    for position, row in rows:
                        images[position] = held[row]
                    copied.update(position for position, _ in rows)
        return copied

    def _is_intact(self, files: StoreFiles, shard: Shard) -> bool:
        key = files.folder, shard
        if key not in self._intact:
            self._intact[key] = False
            with contextlib.suppress(OSError):
                self._intact[key] = files.is_intact(shard)
        return self._intact[key]


def lock_of(store: Path) -> Path:
    """Return the file whose lock a process holds while it builds or repairs a store."""
    return store.parent / _LOCKS / store.name.removeprefix(BUILDING)


def note_use(store: Path) -> None:
    """Record that a store is used now, so that it is not removed."""
    with contextlib.suppress(OSError):  # a read-only disk
        os.utime(store)


def remove_unused(stores: Path, kept: Sequence[Path]) -> None:
    """Remove stores, complete or not, that were not opened for two weeks."""
    for folder in stores.iterdir():
        if folder in kept or folder.name == _LOCKS or not folder.is_dir():
            continue
        with contextlib.suppress(OSError), file_locks.try_lock(lock_of(folder)) as free:
            if free and time.time() - folder.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder)
                logger.info("removed %s: its images were not used for two weeks", folder)
