"""The visual guide in Chromium: a person steers it by keys, and nothing stands in anyone's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.pipeline.evaluation.visual_guide.made_guides import make_guide

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]
MAP = "#softmax [role=slider]"


def test_keys_steer_the_page_and_axe_finds_no_barrier(tmp_path: Path, axe: str) -> None:
    """Arrow keys pick the next patch, on desktop and phone, with no error in the console."""
    make_guide({"name": "vit_registers", "depth": 2, "num_registers": 2}, tmp_path, images=2)
    with browser(1280, 900) as window:
        for width in (1280, 390):
            window.size(width, 900)
            window.open(f"file://{tmp_path / 'guide.html'}", "Which patches would change")
            window.wait_for("[data-ready=true]")
            before = window.attribute(MAP, "aria-valuenow")
            assert before == "0"  # the class token
            window.press_keys(MAP, "ARROW_RIGHT", "ARROW_RIGHT")
            moved = int(window.attribute(MAP, "aria-valuenow"))
            window.press_keys(MAP, "ARROW_LEFT")
            assert int(window.attribute(MAP, "aria-valuenow")) == moved - 1
            assert f"Attention of patch {moved - 1} in block 1" in window.text()
            window.press_keys(MAP, "HOME")
            assert "Attention of the class token in block 1" in window.text()
            assert window.barriers(axe) == []
            assert window.overflow() == 0
        assert window.console() == []
