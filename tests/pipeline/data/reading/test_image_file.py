"""Files are read whole, within their limit, and without memory for the limit."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.data.reading.image_file import MAX_FILE_BYTES, content_of


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
