"""The page of a served model in Chromium: images in, answers, patches covered by keys."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.conftest import Run
from tests.pipeline.registry.made_versions import made_package
from tests.pipeline.serving.served import packaged, png, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def test_an_image_is_answered_and_its_patches_are_covered(finished_run: Run) -> None:
    """On desktop and phone, by keys alone, without a barrier or a request to anywhere else."""
    package = pytest.importorskip("axe_core_python")
    axe = resources.files(package).joinpath("axe.min.js").read_text(encoding="utf-8")
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
            window.press_keys("#grid", "ArrowRight", "Space")
            window.assert_shows("with 1 patch covered", "Row 1, column 2, covered")
            assert window.barriers(axe) == []
            assert window.overflow() == 0
            window.press("Uncover all")
            assert "patch covered" not in window.text()
        assert window.console() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_readable_in_light_and_dark_at_every_width(
    tmp_path: Path, scheme: str
) -> None:
    """Neither the page, with an answer or an error, nor that of the interface has a barrier."""
    package = pytest.importorskip("axe_core_python")
    axe = resources.files(package).joinpath("axe.min.js").read_text(encoding="utf-8")
    made_package(tmp_path / "package", seed=0)
    photo, damaged = tmp_path / "photo.png", tmp_path / "damaged.png"
    photo.write_bytes(png(0, side=64))
    damaged.write_bytes(png(0)[:80])
    with packaged(tmp_path / "package") as port, browser(1280, 900) as window:
        window.prefer(scheme)
        address = f"http://127.0.0.1:{port}"
        for width in (1280, 390):
            window.size(width, 900)
            window.open(f"{address}/docs", "POST /predict", "Status")
            assert (window.barriers(axe), window.overflow()) == ([], 0)
            window.open(f"{address}/", "What is in your image?")
            assert (window.barriers(axe), window.overflow()) == ([], 0)
            window.choose_files("#files", [damaged, photo])
            window.assert_shows("Most probable classes")
            assert (window.barriers(axe), window.overflow()) == ([], 0)
