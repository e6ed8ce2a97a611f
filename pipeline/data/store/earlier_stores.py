"""Earlier stores, whose rows are copied instead of decoded, and the removal of drafts of stores."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from patchline.pipeline.data.store.store_shards import Contents, StoreShards, read_contents
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.earlier_rows import EarlierResult

BUILDING = ".building-"
"""Start of the name of a store that is not complete; its key follows."""
DRAFT_FILE = "from_a_scan"
"""In a store that a scan has made; it is removed once its images are in another store."""
_LOCKS = ".locks"


def earlier_stores(
    stores: Path,
    key_of: Callable[[Contents], str],
    files_of: Callable[[Path, int], StoreShards],
    own: Path,
) -> Iterator[EarlierResult]:
    """Yield the stores of the format that is built.

    Args:
        stores: the folder of all stores.
        key_of: returns the name of a store with these contents, in that format.
        files_of: returns the files of a store with so many images.
        own: the folder that is built.
    """
    for folder in sorted(stores.iterdir()) if stores.is_dir() else ():
        contents = None if folder == own else read_contents(folder)
        if contents is not None and key_of(contents) == folder.name.removeprefix(BUILDING):
            files = files_of(folder, len(contents))
            yield EarlierResult([bytes(each) for each in contents], files.finished, files.read)


def lock_of(store: Path) -> Path:
    """Return the file whose lock a process holds while it builds or repairs a store."""
    return store.parent / _LOCKS / store.name.removeprefix(BUILDING)


def remove_drafts(stores: Path) -> None:
    """Remove the stores that scans have made and no run has completed."""
    for marker in stores.glob(f"{BUILDING}*/{DRAFT_FILE}"):
        with contextlib.suppress(OSError), file_locks.try_lock(lock_of(marker.parent)) as free:
            if free:
                shutil.rmtree(marker.parent)
