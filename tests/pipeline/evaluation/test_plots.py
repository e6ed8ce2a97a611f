"""The pictures of an evaluation, and class names in them, whatever their script."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchline.pipeline.evaluation import plots
from patchline.pipeline.evaluation.galleries import ClassProbability, GalleryImage
from patchline.pipeline.training.augmentation_preview import Column
from patchline.pipeline.training.saved_preview import draw_labelled_picture
from patchline.pipeline.workspace.files.fonts import families_showing, font_showing
from tests.pipeline.evaluation.conftest import report_of

CLASSES = ("across", "down", "rising")
NAMES = ("daisy", "Müller", "кошка", "猫", "قطة", "बिल्ली", "🐈", "a\u200bb", "𐎀", "$a^_{$")


def _pixels(file: Path) -> np.ndarray[Any, Any]:
    """Return the pixels of a picture, which must be a whole PNG with something in it."""
    with Image.open(file) as opened:
        assert opened.format == "PNG"
        pixels = np.asarray(opened.convert("RGB"))
    assert min(pixels.shape[:2]) >= 200
    assert len(np.unique(pixels[::3, ::3].astype(int) @ (65536, 256, 1))) > 5
    return pixels


def test_the_confusion_matrix_of_many_classes() -> None:
    """A picture is written for 40 classes, in images as in shares, of which one is never seen.

    Dollar signs and underscores in class names are letters, not formulas.
    """
    report = report_of(tuple(f"${k}_$^" for k in range(40)), per_class=1)
    for shares in (False, True):
        _pixels(plots.plot_confusion_matrix(report, Path("confusion.png"), shares=shares))
        report = report.model_copy(update={"confusion": ((0,) * 40, *report.confusion[1:])})


def test_a_gallery_shows_its_images() -> None:
    """Each image of a gallery is drawn; an empty gallery is a picture, too."""
    shown = report_of(CLASSES, accuracy=0.5).most_confident_errors
    pixels = np.zeros((36, 12, 12, 1), np.uint8)
    dark = _pixels(plots.plot_gallery(shown, pixels.__getitem__, Path("1.png")))
    pixels[[image.position for image in shown]] = 200
    light = _pixels(plots.plot_gallery(shown, pixels.__getitem__, Path("2.png")))
    assert (dark == 0).all(axis=2).mean() > 0.05
    assert (light == 0).all(axis=2).mean() < 0.01
    assert plots.plot_gallery((), pixels.__getitem__, Path("0.png")).stat().st_size > 0


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
    assert families_showing(["daisy", "猫"])[0] == "DejaVu Sans"  # on every machine


def test_names_that_no_font_shows_are_numbers_of_the_classes() -> None:
    """Counted from 1, in the order of the classes; all others stay as they are."""
    numbers = plots.numbers_without_font(NAMES)
    shown = plots.drawable_names(NAMES, NAMES)
    for number, (name, drawn) in enumerate(zip(NAMES, shown, strict=True), 1):
        assert drawn == (f"#{number}" if name in numbers else name)
        assert (name in numbers) is (font_showing(name) is None)
    assert {"daisy", "Müller", "кошка"}.isdisjoint(numbers)


def test_pictures_are_drawn_without_a_warning() -> None:
    """Each missing character would warn once, and be a box in the picture."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    answer = ClassProbability(name=NAMES[0], probability=0.5)
    images = [
        GalleryImage(path="a.png", position=0, label=name, label_probability=0.1, answers=(answer,))
        for name in NAMES
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.plot_gallery(images, lambda _: pixels, Path("gallery.png"), NAMES)
        column = Column("as stored", pixels[None].repeat(len(NAMES), 0))
        picture = draw_labelled_picture("preview", [column], NAMES)
    assert picture.width > 100
