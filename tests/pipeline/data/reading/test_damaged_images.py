"""Damaged, foreign and oversized data: one failure, within bounds, and named."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz import fuzz_data, fuzz_images
from patchline.pipeline.data.manifests.scanning import scan
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_file import MAX_FILE_BYTES, content_of
from patchline.plugin_api import ImageListing, ListedImage
from tests.patience import patient
from tests.pipeline.data.pixel_values.made_files import refused
from tests.pipeline.data.reading.test_decoding import png_of_zeros

ROOT = Path(__file__).resolve().parents[4]


def test_a_few_hundred_damaged_files_are_answered() -> None:
    """Mutated files of all formats give pixels or a reason: nothing else, and no process."""
    found, failures = fuzz_images(60, seed=1)
    assert failures == []
    assert found["decoded"] > 10
    assert found["refused with a reason"] > 100


def test_a_format_that_is_not_read_is_named() -> None:
    """PostScript is refused by name, and nothing is started."""
    refused(
        "PostScript files are not supported; convert",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    )


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A pipe, a device and a directory of an image's name are named, and nothing waits for them."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "zero.png", "folder.png"):
        row = scanned(tmp_path, name)
        assert (row["status"], row["reason"]) == ("damaged", "not a regular file"), name


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_large_files_and_extreme_images_take_little_memory(tmp_path: Path) -> None:
    """Sparse files of 600 MB are described, and strips and deep images decoded, in few MiB.

    The process reads its own high-water mark: what a parent is told includes its own.
    """
    for name, start in (("video.mp4", b"\0\0\0\x18ftypmp42"), ("large.png", b"\x89PNG\r\n\x1a\n")):
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(600_000_000)
    code = f"""
import io, sys
from pathlib import Path
import numpy as np
from PIL import Image
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from tests.pipeline.data.reading.test_damaged_images import png_of_zeros, scanned
for name in ('video.mp4', 'large.png'):
    scanned(Path({str(tmp_path)!r}), name)
print(Path('/proc/self/status').read_text())
for size in ((1, 13_000), (1_000_000, 1)):
    for policy in ('crop', 'pad'):
        resize_image(decode_image(png_of_zeros(*size), 3), 64, 64, policy)
file = io.BytesIO()
Image.fromarray(np.zeros((6000, 6000), np.uint16)).save(file, 'PNG', compress_level=1)
decode_image(file.getvalue(), 3)
print(Path('/proc/self/status').read_text())
"""
    out = subprocess.check_output(
        [sys.executable, "-c", code], timeout=patient(200), cwd=ROOT, text=True
    )
    peaks = [int(kibibytes) // 1024 for kibibytes in re.findall(r"VmHWM:\s+(\d+) kB", out)]
    assert peaks[0] < 400
    assert peaks[1] < 500


def scanned(root: Path, name: str) -> Any:
    """Return the manifest's row of a file."""
    return scan(ImageListing("x", root, [ListedImage(name, "a")])).iloc[0]


def test_the_largest_strip_is_refused_in_a_sentence() -> None:
    """An image with more than a million pixels on a side is refused with its size."""
    refused("1000001x1 pixels, but at most 1000000 per", png_of_zeros(1_000_001, 1), 1)
    assert decode_image(png_of_zeros(1_000_000, 1), 1).shape == (1, 1_000_000, 1)


@pytest.mark.parametrize("size", [0, 7, 10, 20])
def test_a_file_of_any_known_size_is_read_whole(size: int) -> None:
    """It may have grown or shrunk since its size was looked up; one beyond the limit is refused."""
    with content_of(io.BytesIO(b"0123456789"), size, limit=10) as data:
        assert data == b"0123456789"
    beyond = content_of(io.BytesIO(b"0123456789+"), size, limit=10)
    with pytest.raises(UndecodableImageError, match="more than"), beyond:
        pass


def test_a_small_file_takes_little_memory() -> None:
    """Memory is allocated for the file, not for the largest one that would be read."""
    opened = io.BufferedReader(io.BytesIO(bytes(10_000)))
    tracemalloc.start()
    with content_of(opened, 10_000, MAX_FILE_BYTES) as data:
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) <= peak < 100_000


def test_some_damaged_data_sets_are_answered() -> None:
    """Whatever is packed, and however it is damaged, it is read or refused by name."""
    found, failures = fuzz_data(8, seed=1)
    assert failures == []
    assert found["read"] > 1
    assert found["refused with a reason"] > 1
    assert found["peak memory, MiB"] < 1000
