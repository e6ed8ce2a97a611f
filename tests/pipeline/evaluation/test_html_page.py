"""What every page is made of: numbers in words, and pictures as data."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.evaluation.html_page import thumbnail
from patchline.pipeline.templates import page_environment
from patchline.pipeline.terminal_words import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0"), (1, "100.0"), (0.9999, ">99.9"), (0.0002, "<0.1"), (0.123, "12.3")],
)
def test_only_nothing_is_0_percent_and_only_everything_is_100(share: float, text: str) -> None:
    """A share is rounded to one digit, but never to none or all."""
    assert percent(share) == f"{text}%"


@pytest.mark.parametrize(("height", "width"), [(600, 300), (1, 2000)])
def test_a_large_image_becomes_small(height: int, width: int) -> None:
    """A thumbnail is a small JPEG of the same colours."""
    uri = thumbnail(np.full((height, width, 3), (200, 200, 20), np.uint8))
    kind, _, data = uri.partition(";base64,")
    shown = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert (kind, shown.format) == ("data:image/jpeg", "JPEG")
    assert max(shown.size) <= 160
    assert len(uri) < 8000
    assert np.abs(np.array(shown.convert("RGB"), int) - (200, 200, 20)).max() < 12


def test_no_page_holds_what_a_browser_hides_or_obeys() -> None:
    """Control characters and directions of text are written out; other scripts stay as they are."""
    name = "esc\x1b[2J\x07\u202egnp <b>猫咪 قطة 🦁"
    page = page_environment("patchline.pipeline.evaluation").from_string(
        "{{ name }}{% for each in names %}<i title='{{ each }}'>{{ each ~ 1 }}</i>{% endfor %}"
    )
    text = page.render(name=name, names=[name])
    assert text.count(r"esc\x1b[2J\x07\u202egnp &lt;b&gt;猫咪 قطة 🦁") == 3
    assert not set("\x1b\x07\u202e") & set(text)
