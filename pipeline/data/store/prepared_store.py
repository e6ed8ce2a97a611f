"""The prepared store: every image read once, in the size that the model takes.

A store is addressed by its content: the images, their order, the size, and the decoder's version,
source and libraries. So runs with the same data share one store. Images are decoded as uint8 in one
memory-mapped array, or, where that would not fit the disk, packed as image files, which are decoded
when they are used. In a shared workspace, a store that is larger than the cache on a machine stays
on the object store, in either form (`streamed_records`). All hold the same pixels.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Literal

import pandas as pd

from patchline.pipeline.data.manifests.manifest import Progress
from patchline.pipeline.data.reading.child_processes import FEWEST_FILES
from patchline.pipeline.data.store.opened_images import is_streamed, open_images
from patchline.pipeline.data.store.store_builds import (
    DecodedBuild,
    PackedBuild,
    StoreBuild,
    StreamedBuild,
    is_on,
    lock_of,
)
from patchline.pipeline.data.store.store_shards import StoreSpec
from patchline.pipeline.data.store.streamed_records import StreamedIndex
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.shared_files import SharedFiles

logger = logging.getLogger(__name__)

__all__ = ["StoreKind", "StoreSpec", "is_complete", "is_streamed", "open_images", "prepare"]

StoreKind = Literal["auto", "decoded", "packed"]


def prepare(
    rows: pd.DataFrame,
    root: Path,
    spec: StoreSpec,
    stores: Path,
    on_progress: Progress | None = None,
    *,
    kind: StoreKind = "auto",
    fresh: bool = False,
    fewest: int = FEWEST_FILES,
    shared: SharedFiles | None = None,
) -> tuple[Path, bool]:
    """Read the usable rows of a manifest into a store, unless an intact one exists.

    Args:
        rows: the usable rows of the manifest.
        root: the folder or archive that their paths are relative to.
        spec: the format of the decoded images.
        stores: the folder of all stores.
        on_progress: called with the number of images that are ready.
        kind: whether images are kept decoded or packed; `auto` packs them if they would take more
            than nine tenths of the free space decoded.
        fresh: decode every image again, whatever exists.
        fewest: the least number of images for which child processes are used.
        shared: the shared files of the workspace whose object store holds the images, if they do
            not stay on this machine.

    Returns:
        The store's folder, and whether it existed already.

    Raises:
        DataError: if a file changed since it was scanned.
        StorageError: if the disk is full or read-only.
    """

    def on_wait() -> None:
        logger.warning("another process is decoding these images; waiting for it")

    if shared is not None:
        streamed = StreamedBuild(rows, root, spec, stores, on_progress, shared, kind == "packed")
        with storage_errors(stores), file_locks.hold_lock(lock_of(streamed.store), on_wait):
            return streamed.store, streamed.finish(fresh=fresh)
    decoded = DecodedBuild(rows, root, spec, stores, on_progress, fewest)
    if kind != "packed" and not fresh and decoded.is_intact():
        return decoded.store, True
    with storage_errors(stores):
        make_folder(stores)
    build: StoreBuild = decoded
    if kind == "packed" or (kind == "auto" and not _fits(decoded)):
        build = PackedBuild(rows, root, spec, stores, on_progress, fewest)
        if not fresh and build.is_intact():
            return build.store, True

    with storage_errors(build.store), file_locks.hold_lock(lock_of(build.store), on_wait):
        return build.store, build.finish(fresh=fresh)


def _fits(build: DecodedBuild) -> bool:
    """Return whether the disk has space for decoded images, and log it if not."""
    begun = build.store if build.store.is_dir() else build.building
    files = build.files(begun)
    if files.fit_the_disk():
        return True
    logger.warning(
        "the decoded images would take %s, but only %s of disk space is free, so the image files "
        "are packed and decoded on every use, which is slower",
        _size(files.images.bytes_to_allocate()),
        _size(shutil.disk_usage(build.stores).free),
    )
    return False


def is_complete(store: Path) -> bool:
    """Return whether the images of a store are there, as far as that is known without reading."""
    index = StreamedIndex.read(store)
    if index is None:
        return True
    shared = chosen.find_shared_files()
    return shared is not None and is_on(index, shared, store.name)


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"  # noqa: PLR2004
