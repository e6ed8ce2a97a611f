"""Images for the tests of prepared stores, and a clock for those of memories."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_photo


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of seven images of different sizes, modes and formats."""
    folder = tmp_path / "images"
    folder.mkdir()
    photos = [draw_photo(variant, 0, 16 + 8 * variant) for variant in range(4)]
    more = [draw_photo(0, 5, 40)[:, :20], draw_photo(1, 5, 40)[:12, :, 0], draw_photo(1, 6, 12)]
    names = ("0.png", "1.png", "2.png", "3.png", "tall.jpg", "wide grey.png", "small.gif")
    for name, pixels in zip(names, [*photos, *more], strict=True):
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan as if the files had been written a minute ago."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60 * 10**9)
