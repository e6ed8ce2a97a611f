"""The prepared store: every image decoded once, as uint8 in one memory-mapped array.

A store is addressed by its content: the images, their order, the size, and the decoder's version,
source and libraries. So runs with the same data share one store. A store is complete when it
appears; before each use its digest is computed and compared. A store that is damaged or has no
digest is decoded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from pipeline.data import decoding, image_formats, jpeg_wholeness, png_chunks
from pipeline.data.decoding import UndecodableImageError, decoded, resize_image
from pipeline.data.image_root import root_image_bytes
from pipeline.data.manifest import Progress
from pipeline.errors import DataError
from pipeline.files.atomic_files import storage_errors, write_text
from pipeline.files.file_digest import FileDigest, digest_of
from pipeline.workspace import make_folder

logger = logging.getLogger(__name__)

DECODER_VERSION = 2
"""Increase it when decoding or resizing changes a pixel; old stores are then not used."""

IMAGES_FILE, DIGEST_FILE = "images.npy", "digest.json"
_DECODER_MODULES = (decoding, image_formats, jpeg_wholeness, png_chunks)
_DECODERS = ("opencv-python-headless", "pillow")
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class StoreSpec:
    """The format of every image of a store."""

    channels: int
    height: int
    width: int
    resize: Literal["crop", "squash"]


def prepare(
    rows: pd.DataFrame,
    root: Path,
    spec: StoreSpec,
    stores: Path,
    on_progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> tuple[Path, bool]:
    """Decode the usable rows of a manifest into a store, unless an intact one exists.

    Args:
        rows: the usable rows of the manifest.
        root: the folder or archive that their paths are relative to.
        spec: the format of the decoded images.
        stores: the folder of all stores.
        on_progress: called with the number of images decoded so far.
        fresh: decode again even if a store exists.

    Returns:
        The store's folder, and whether it existed already.

    Raises:
        DataError: if a file changed since it was scanned.
        StorageError: if the disk is full or read-only.
    """
    store = stores / _key(rows, spec)
    if not fresh and is_whole(store):
        return store, True
    with storage_errors(store):
        make_folder(stores)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=stores))
        try:
            _fill(building, rows, root, spec, on_progress)
            digest = digest_of(building / IMAGES_FILE)
            write_text(building / DIGEST_FILE, digest.model_dump_json())
            _publish(building, store)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return store, False


def is_whole(store: Path) -> bool:
    """Return whether a store exists and its images match their digest."""
    images = store / IMAGES_FILE
    if not images.is_file():
        return False
    try:
        expected = FileDigest.model_validate_json((store / DIGEST_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        logger.warning("the images decoded before have no digest; they are decoded again")
        return False
    if images.stat().st_size != expected.bytes or digest_of(images) != expected:
        logger.warning("the images decoded before are damaged; they are decoded again")
        return False
    return True


def open_images(store: Path) -> Pixels:
    """Return the images (N, H, W, C), mapped from disk and read-only."""
    images: Pixels = np.load(store / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
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


def _key(rows: pd.DataFrame, spec: StoreSpec) -> str:
    versions = [metadata.version(name) for name in _DECODERS]
    texts = [Path(str(module.__file__)).read_bytes() for module in _DECODER_MODULES]
    source = hashlib.sha256(b"\0".join(texts)).hexdigest()
    ingredients = [DECODER_VERSION, source, *versions, *vars(spec).values()]
    digest = hashlib.sha256(json.dumps(ingredients).encode())
    for sha256 in rows["sha256"]:
        digest.update(sha256.encode())
    return digest.hexdigest()[:32]


def _fill(
    building: Path, rows: pd.DataFrame, root: Path, spec: StoreSpec, on_progress: Progress | None
) -> None:
    shape = (len(rows), spec.height, spec.width, spec.channels)
    images = np.lib.format.open_memmap(
        building / IMAGES_FILE, mode="w+", dtype=np.uint8, shape=shape
    )

    _reserve(building / IMAGES_FILE)

    def decode(item: tuple[int, str, str]) -> None:
        position, path, sha256 = item
        try:
            with root_image_bytes(root, path) as data:
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise DataError(f"{path} changed while it was being read. Run again.")
                with decoded(data, spec.channels, known_whole=True) as pixels:
                    images[position] = resize_image(pixels, spec.height, spec.width, spec.resize)
        except UndecodableImageError as error:
            raise DataError(f"{path}: {error}. Restore it, or run again.") from error

    items = zip(range(len(rows)), rows["path"], rows["sha256"], strict=True)
    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        for done, _ in enumerate(pool.map(decode, items, chunksize=64), start=1):
            if on_progress:
                on_progress(done, len(rows))
    images.flush()


def _reserve(file: Path) -> None:
    """Allocate the disk space now: a full disk is then an error here, not a crash later."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _publish(building: Path, store: Path) -> None:
    """Move a new store to its place; readers of a replaced file keep their open copy."""
    try:
        building.rename(store)
    except OSError:
        if not store.is_dir():
            raise
        for name in (IMAGES_FILE, DIGEST_FILE):  # the same content, from another or an earlier run
            (building / name).replace(store / name)
