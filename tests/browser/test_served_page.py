"""The page of a served model in Chromium: images in, answers, patches covered by keys."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.conftest import Run
from tests.pipeline.serving.served import packaged, png

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_images_are_answered_and_every_page_is_readable(
    finished_run: Run, tmp_path: Path, axe: str
) -> None:
    """On desktop and phone, in light and dark, by keys alone, without a request to anywhere else.

    Neither the page, with an answer or an error, nor that of the interface has a barrier.
    """
    images = sorted(Path(finished_run.folder, "photos").rglob("*.*"))[:2]
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(png(0)[:80])
    [package] = finished_run.folder.glob(".patchline/runs/*/package")
    with packaged(package) as port, browser(1280, 900) as window:

        def assert_readable() -> None:
            assert (window.barriers(axe), window.overflow()) == ([], 0)

        for scheme, width in product(("light", "dark"), (1280, 390)):
            window.prefer(scheme)
            window.size(width, 900)
            window.open(f"http://127.0.0.1:{port}/", "What is in your image?", "version 1")
            assert_readable()
            window.choose_files("#files", images)
            text = window.assert_shows("Most probable classes", "Where the model looks")
            assert "patch covered" not in text
            window.press_keys("#grid", "ARROW_RIGHT", "SPACE")
            window.assert_shows("with 1 patch covered", "Row 1, column 2, covered")
            assert_readable()
            window.press("Uncover all")
            assert "patch covered" not in window.text()
            assert window.console() == []
            window.choose_files("#files", [damaged, images[0]])
            window.assert_shows("damaged.png: ", "Most probable classes")
            assert_readable()
            window.open(f"http://127.0.0.1:{port}/docs", "POST /predict", "Status")
            assert_readable()
            window.console()
