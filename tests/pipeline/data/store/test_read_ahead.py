"""Reading ahead: which bytes of which files hold the rows, and that they are then in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.data.store.read_ahead import ReadAhead, ranges_of
from patchline.pipeline.files.stored_images import StoredImages
from tests.patience import patient


@pytest.fixture
def stored(tmp_path: Path) -> tuple[StoredImages, Path]:
    """Return 4,000 images of 12 kB, mapped from a file, and the file."""
    file = tmp_path / "images.npy"
    images = np.random.default_rng(0).integers(0, 256, (4000, 64, 64, 3), dtype=np.uint8)
    np.save(file, images)
    mapped: StoredImages = np.load(file, mmap_mode="r")
    return mapped, file


def test_ranges_hold_the_rows(stored: tuple[StoredImages, Path]) -> None:
    """The bytes of a range are those of its rows, and neighbours are read together."""
    images, file = stored
    rows = np.array([3, 4, 5, 900, 3999])
    ranges = list(ranges_of(images, rows))
    assert len(ranges) == 3
    with file.open("rb") as opened:
        read = b""
        for each in ranges:
            assert each.file == file
            opened.seek(each.start)
            read += opened.read(each.stop - each.start)
    assert read == images[rows].tobytes()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs the calls of Linux")
def test_rows_that_were_announced_are_in_memory(stored: tuple[StoredImages, Path]) -> None:
    """The pages of announced rows enter the file cache, and others do not have to."""
    images, file = stored
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if _cached(file)[2000:].mean() > 0.5:
        pytest.skip("this file system keeps its files in memory")
    before = _cached(file).mean()
    ReadAhead(images)(np.arange(1000, 2000) + len(images))  # drawn for the second time
    first, last = 1000 * 12288 // mmap.PAGESIZE + 1, 2000 * 12288 // mmap.PAGESIZE
    deadline = time.monotonic() + patient(60)
    while _cached(file)[first:last].mean() < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _cached(file)[first:last].all()
    assert before < 0.5
    os.close(descriptor)


def _cached(file: Path) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which pages of a file are in the file cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    mapped = np.memmap(file, np.uint8, mode="r")
    pages = -(-mapped.size // mmap.PAGESIZE)
    known = np.zeros(pages, np.uint8)
    address, size = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.size)
    assert libc.mincore(address, size, known.ctypes.data_as(ctypes.c_void_p)) == 0
    return (known & 1).astype(bool)
