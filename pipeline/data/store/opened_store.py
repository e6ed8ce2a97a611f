"""The images of a store that is complete, of whichever kind it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from patchline.pipeline.data.store.decoded_files import IMAGES_FILE
from patchline.pipeline.data.store.local_pages import LocalPages
from patchline.pipeline.data.store.packed_files import PACKED_FILE, PackedImages
from patchline.pipeline.data.store.store_shards import Pixels
from patchline.pipeline.data.store.streamed_images import StreamedImages
from patchline.pipeline.data.store.streamed_records import STREAMED_FILE
from patchline.pipeline.files.stored_images import StoredImages


def is_streamed(store: Path) -> bool:
    """Return whether the images of a store are on an object store."""
    return (store / STREAMED_FILE).exists()


def open_images(
    store: Path, threads: int | None = None, pages: LocalPages | None = None
) -> StoredImages:
    """Return the images (N, H, W, C), mapped from disk and read-only.

    Args:
        store: the folder.
        threads: that decode packed images; by default one for each processor.
        pages: with images of a streamed store, if there are some on this machine.
    """
    if is_streamed(store):
        return StreamedImages(store, threads, pages)
    if (store / PACKED_FILE).exists():
        return PackedImages(store, threads)
    images: Pixels = np.load(store / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
    return images
