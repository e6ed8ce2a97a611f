"""The page on which people label images, in Chromium: by keys alone, on desktop and phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.plugins.tools.label.labelled import labelling, rows_of, write_images

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_images_are_labelled_by_keys_without_a_barrier(tmp_path: Path, axe: str) -> None:
    """Digits answer, U sets aside, Z takes back, and axe finds nothing at either size."""
    folder = write_images(tmp_path / "inbox", 12)
    with (
        labelling(folder, "--classes", "rose,tulip") as page,
        browser(1280, 900) as window,
    ):
        for width, done in ((1280, 0), (390, 2)):
            window.size(width, 900)
            window.open(page.ready["url"], f"{done} of 12 images labelled", "rose", "tulip")
            assert window.barriers(axe) == []
            assert window.overflow() == 0
            for key, labelled in (("1", 1), ("2", 2), ("z", 1), ("1", 2)):
                window.type_keys("body", key)
                window.assert_shows(f"{done + labelled} of 12 images labelled")
        window.type_keys("body", "u")
        window.assert_shows("1 set aside")
        table = folder / "labels.csv"
        table.write_text(table.read_text().replace("rose", "tulip"))
        window.type_keys("body", "u")
        window.assert_shows("2 set aside", "labels.csv had changes", "--import")
        assert window.barriers(axe) == []
        window.press("OK")
        for number in range(3, 9):
            window.type_keys("body", "u")
            window.assert_shows(f"{number} set aside")
        shown = window.assert_shows("Every other image has an answer.", "8 are set aside")
        assert "--import" not in shown
        assert window.barriers(axe) == []
        assert window.console() == []
    assert [row["label"] for row in rows_of(folder / "labels.csv")] == ["rose"] * 4
