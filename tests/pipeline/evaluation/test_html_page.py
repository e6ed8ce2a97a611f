"""What every page is made of: numbers in words, and pictures as data."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.evaluation.html_page import percent, picture, plural, thumbnail
from patchline.pipeline.visual_guide.page_environment import page_environment


def _opened(uri: str) -> Image.Image:
    kind, _, data = uri.partition(";base64,")
    opened = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert kind == f"data:image/{str(opened.format).lower()}"
    return opened


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0"), (1, "100.0"), (0.5, "50.0"), (0.9999, ">99.9"), (0.0002, "<0.1"), (0.123, "12.3")],
)
def test_only_nothing_is_0_percent_and_only_everything_is_100(share: float, text: str) -> None:
    """A share is rounded to one digit, but never to none or all."""
    assert percent(share) == f"{text}%"


def test_numbers_agree_with_their_nouns() -> None:
    """One error, two errors; thousands are set apart."""
    words = [plural(count, "error").replace("\N{NO-BREAK SPACE}", " ") for count in (0, 1, 12_345)]
    assert words == ["0 errors", "1 error", "12,345 errors"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_image_keeps_every_pixel(channels: int) -> None:
    """Up to 48 pixels a thumbnail is the image itself."""
    pixels = np.random.default_rng(0).integers(0, 256, (28, 40, channels), dtype=np.uint8)
    shown = np.asarray(_opened(thumbnail(pixels)).convert("RGB"))
    assert np.array_equal(shown, np.broadcast_to(pixels, (28, 40, 3)))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(600, 300), (64, 64), (1, 2000)])
def test_a_large_image_becomes_small(height: int, width: int, channels: int) -> None:
    """A thumbnail is a small JPEG of the same proportions and colours."""
    pixels = np.full((height, width, channels), 200, np.uint8)
    if channels == 3:
        pixels[:, :, 2] = 20
    uri = thumbnail(pixels)
    shown = _opened(uri)
    assert max(shown.size) <= 160
    assert len(uri) < 8000
    expected = (200, 200, 20) if channels == 3 else (200, 200, 200)
    assert np.abs(np.array(shown.convert("RGB"), int) - expected).max() < 12


def test_a_large_picture_is_made_smaller(tmp_path: Path) -> None:
    """A picture of many pixels is shrunk; a small one is embedded as it is."""
    noise = np.random.default_rng(0).integers(0, 256, (60, 2000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    assert _opened(picture(tmp_path / "large.png")).size == (1400, 42)
    Image.fromarray(noise[:, :90]).save(tmp_path / "small.png")
    assert np.array_equal(np.asarray(_opened(picture(tmp_path / "small.png"))), noise[:, :90])


def test_no_page_holds_what_a_browser_hides_or_obeys() -> None:
    """Control characters and directions of text are written out; other scripts stay as they are."""
    name = "esc\x1b[2J\x07\u202egnp <b>猫咪 قطة 🦁"
    page = page_environment("patchline.pipeline.evaluation").from_string(
        "{{ name }}{% for each in names %}<i title='{{ each }}'>{{ each ~ 1 }}</i>{% endfor %}"
    )
    text = page.render(name=name, names=[name])
    assert text.count(r"esc\x1b[2J\x07\u202egnp &lt;b&gt;猫咪 قطة 🦁") == 3
    assert not set("\x1b\x07\u202e") & set(text)
