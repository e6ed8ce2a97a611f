"""The page of a served model in Chromium: images in, answers, patches covered by keys."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.conftest import Run
from tests.pipeline.registry.made_versions import made_package
from tests.pipeline.registry.serving.served import packaged, png, serving

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_an_image_is_answered_and_its_patches_are_covered(finished_run: Run, axe: str) -> None:
    """On desktop and phone, by keys alone, without a barrier or a request to anywhere else."""
    images = sorted(Path(finished_run.folder, "photos").rglob("*.*"))[:2]
    with (
        serving(finished_run.folder, model="photos@champion") as server,
        browser(1280, 900) as window,
    ):
        for width in (1280, 390):
            window.size(width, 900)
            window.open(f"http://127.0.0.1:{server.port}/", "What is in your image?", "version 1")
            assert window.barriers(axe) == []
            window.choose_files("#files", images)
            text = window.assert_shows("Most probable classes", "Where the model looks")
            assert "patch covered" not in text
            window.press_keys("#grid", "ARROW_RIGHT", "SPACE")
            window.assert_shows("with 1 patch covered", "Row 1, column 2, covered")
            assert window.barriers(axe) == []
            assert window.overflow() == 0
            window.press("Uncover all")
            assert "patch covered" not in window.text()
        assert window.console() == []


def test_every_page_is_readable_in_light_and_dark_at_every_width(tmp_path: Path, axe: str) -> None:
    """Neither the page, with an answer or an error, nor that of the interface has a barrier."""
    made_package(tmp_path / "package", seed=0)
    photo, damaged = tmp_path / "photo.png", tmp_path / "damaged.png"
    photo.write_bytes(png(0, side=64))
    damaged.write_bytes(png(0)[:80])
    with packaged(tmp_path / "package") as port, browser(1280, 900) as window:

        def assert_readable() -> None:
            assert (window.barriers(axe), window.overflow()) == ([], 0)

        for scheme, width in product(("light", "dark"), (1280, 390)):
            window.prefer(scheme)
            window.size(width, 900)
            window.open(f"http://127.0.0.1:{port}/docs", "POST /predict", "Status")
            assert_readable()
            window.open(f"http://127.0.0.1:{port}/", "What is in your image?")
            assert_readable()
            window.choose_files("#files", [damaged, photo])
            window.assert_shows("Most probable classes")
            assert_readable()
