"""Class names in every script show in pictures, or a number that the report explains."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.evaluation.galleries import Answer, GalleryImage
from patchline.pipeline.evaluation.plots import drawable_names, numbers_without_font, plot_gallery
from patchline.pipeline.files.fonts import families_showing, font_showing
from patchline.pipeline.training.augmentation_preview import Column, labelled_picture

NAMES = ("daisy", "Müller", "кошка", "猫", "قطة", "बिल्ली", "🐈", "a\u200bb", "𐎀")


def test_a_font_has_all_characters_of_a_text_or_there_is_none() -> None:
    """Checked against the characters that the font itself lists."""
    from matplotlib.ft2font import FT2Font

    for name in NAMES:
        font = font_showing(name)
        if font is not None:
            listed = FT2Font(str(font)).get_charmap()
            assert all(ord(each) in listed for each in name)
    assert font_showing("daisy and Müller, кошка") is not None  # matplotlib's own
    assert font_showing("\U00010380 ugaritic 猫") is None


def test_names_that_no_font_shows_are_numbers_of_the_classes() -> None:
    """Counted from 1, in the order of the classes; all others stay as they are."""
    numbers = numbers_without_font(NAMES)
    shown = drawable_names(NAMES, NAMES)
    for number, (name, drawn) in enumerate(zip(NAMES, shown, strict=True), 1):
        assert drawn == (f"#{number}" if name in numbers else name)
        assert (name in numbers) is (font_showing(name) is None)
    assert {"daisy", "Müller", "кошка"}.isdisjoint(numbers)


def test_pictures_are_drawn_without_a_warning(tmp_path: Path) -> None:
    """Each missing character would warn once, and be a box in the picture."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    answer = Answer(name=NAMES[0], probability=0.5)
    images = [
        GalleryImage(path="a.png", position=0, label=name, label_probability=0.1, answers=(answer,))
        for name in NAMES
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_gallery(images, lambda _: pixels, tmp_path / "gallery.png", NAMES)
        column = Column("as stored", pixels[None].repeat(len(NAMES), 0))
        picture = labelled_picture("preview", [column], NAMES)
    assert (tmp_path / "gallery.png").stat().st_size > 1000
    assert picture.width > 100


@pytest.mark.parametrize("texts", [[], ["daisy"], ["daisy", "猫"]])
def test_the_first_family_is_always_that_of_matplotlib(texts: list[str]) -> None:
    """Latin letters look the same on every machine."""
    assert families_showing(texts)[0] == "DejaVu Sans"
