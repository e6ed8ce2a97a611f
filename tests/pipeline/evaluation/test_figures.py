"""The pictures of an evaluation are written for every kind of report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.evaluation import figures
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import random_images, report_of

CLASSES = ("across", "down", "rising")


def _history(epochs: int) -> list[dict[str, float]]:
    return [
        {
            "epoch": epoch,
            "train_loss": 1.0 / epoch,
            "validation_loss": 1.2 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "validation_accuracy": 1 - 0.6 / epoch,
        }
        for epoch in range(1, epochs + 1)
    ]


def _pixels(file: Path) -> np.ndarray[Any, Any]:
    """Return the pixels of a picture, which must be a whole PNG with something in it."""
    with Image.open(file) as opened:
        assert opened.format == "PNG"
        pixels = np.asarray(opened.convert("RGB"))
    assert min(pixels.shape[:2]) >= 200
    assert np.unique(pixels.reshape(-1, 3), axis=0).shape[0] > 5
    return pixels


@pytest.mark.parametrize("count", [2, 3, 40])
def test_the_confusion_matrix_of_few_and_many_classes(tmp_path: Path, count: int) -> None:
    """A picture is written for 2 classes as for 40."""
    report = report_of(tmp_path, tuple(f"class {k}" for k in range(count)))
    _pixels(figures.confusion_figure(report, tmp_path / "confusion.png"))


def test_the_confusion_matrix_shows_where_the_errors_are(tmp_path: Path) -> None:
    """A model that is always right and one that never is look different."""
    perfect = report_of(tmp_path, CLASSES, accuracy=1.0)
    confused = report_of(tmp_path, CLASSES, accuracy=0.0)
    one = _pixels(figures.confusion_figure(perfect, tmp_path / "perfect.png"))
    other = _pixels(figures.confusion_figure(confused, tmp_path / "confused.png"))
    assert one.shape != other.shape or (one != other).any()


def test_a_class_without_test_images_is_drawn(tmp_path: Path) -> None:
    """An empty row of the confusion matrix divides by nothing."""
    report = report_of(tmp_path, CLASSES)
    emptied = report.model_copy(update={"confusion": ((3, 1, 0), (0, 0, 0), (0, 2, 5))})
    _pixels(figures.confusion_figure(emptied, tmp_path / "confusion.png"))


@pytest.mark.parametrize("epochs", [1, 2, 30])
def test_the_curves_of_short_and_long_trainings(tmp_path: Path, epochs: int) -> None:
    """A picture with both curves is written for one epoch as for many."""
    drawn = _pixels(figures.curves_figure(_history(epochs), tmp_path / "curves.png"))
    assert _share_of_blue(drawn) > 1e-4


def _share_of_blue(pixels: np.ndarray[Any, Any]) -> float:
    return float((pixels == (0x25, 0x63, 0xA8)).all(axis=2).mean())


def test_one_epoch_is_marked(tmp_path: Path) -> None:
    """With one epoch, each curve has a mark that an empty history does not have."""
    one = _pixels(figures.curves_figure(_history(1), tmp_path / "one.png"))
    none = _pixels(figures.curves_figure([], tmp_path / "none.png"))
    assert _share_of_blue(one) > 1.05 * _share_of_blue(none) > 0


@pytest.mark.parametrize("channels", [1, 3])
def test_the_errors_show_their_images(tmp_path: Path, channels: int) -> None:
    """Each error's own image is drawn, grey or in colour."""
    report = report_of(tmp_path, CLASSES, accuracy=0.5)
    rows = [error.row for error in report.most_confident_errors]
    black = np.zeros((36, 12, 12, channels), np.uint8)
    marked = black.copy()
    marked[rows] = 200
    dark = _pixels(figures.errors_figure(report.most_confident_errors, black, tmp_path / "1.png"))
    light = _pixels(figures.errors_figure(report.most_confident_errors, marked, tmp_path / "2.png"))
    assert (dark == 0).all(axis=2).mean() > 0.05
    assert (light == 0).all(axis=2).mean() < 0.01


def test_no_errors_make_a_picture_too(tmp_path: Path) -> None:
    """Where nothing went wrong the picture says so."""
    file = figures.errors_figure((), random_images(1, 3), tmp_path / "errors.png")
    with Image.open(file) as opened:
        assert np.asarray(opened.convert("L")).min() < 200


def test_names_with_signs_of_formulas_are_drawn(tmp_path: Path) -> None:
    """Dollar signs and underscores in class names are letters, not formulas."""
    report = report_of(tmp_path, ("$5_$9", "$a^", "{b$"), accuracy=0.3)
    images = random_images(36, 3)
    _pixels(figures.confusion_figure(report, tmp_path / "confusion.png"))
    _pixels(figures.errors_figure(report.most_confident_errors, images, tmp_path / "errors.png"))


def test_a_real_run_has_its_pictures(finished_run: Run) -> None:
    """The run's report folder holds the three pictures under their fixed names."""
    folder = Path(str(finished_run.summary["report"])).parent
    for name in (figures.CONFUSION, figures.CURVES, figures.ERRORS):
        _pixels(folder / name)
