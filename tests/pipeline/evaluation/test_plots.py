"""The pictures of an evaluation are written for every kind of report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.evaluation import plots
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
    assert len(np.unique(pixels[::3, ::3].astype(int) @ (65536, 256, 1))) > 5
    return pixels


@pytest.mark.parametrize(("count", "shares"), [(2, True), (40, False)])
def test_the_confusion_matrix_of_few_and_many_classes(
    tmp_path: Path, count: int, shares: bool
) -> None:
    """A picture is written for 2 classes as for 40, in images as in shares."""
    report = report_of(tmp_path, tuple(f"class {k}" for k in range(count)), per_class=3)
    _pixels(plots.plot_confusion_matrix(report, tmp_path / "confusion.png", shares=shares))


def test_the_confusion_matrix_shows_where_the_errors_are(tmp_path: Path) -> None:
    """A model that is always right and one that never is look different."""
    perfect = report_of(tmp_path, CLASSES, accuracy=1.0)
    confused = report_of(tmp_path, CLASSES, accuracy=0.0)
    one = _pixels(plots.plot_confusion_matrix(perfect, tmp_path / "perfect.png"))
    other = _pixels(plots.plot_confusion_matrix(confused, tmp_path / "confused.png"))
    assert one.shape != other.shape or (one != other).any()


def test_a_class_without_test_images_is_drawn(tmp_path: Path) -> None:
    """An empty row of the confusion matrix divides by nothing."""
    report = report_of(tmp_path, CLASSES)
    emptied = report.model_copy(update={"confusion": ((3, 1, 0), (0, 0, 0), (0, 2, 5))})
    _pixels(plots.plot_confusion_matrix(emptied, tmp_path / "confusion.png"))


@pytest.mark.parametrize("epochs", [1, 2, 30])
def test_the_curves_of_short_and_long_runs(tmp_path: Path, epochs: int) -> None:
    """A picture with both curves is written for one epoch as for many."""
    drawn = _pixels(plots.plot_training_curves(_history(epochs), tmp_path / "curves.png"))
    assert _share_of_blue(drawn) > 1e-4


def _share_of_blue(pixels: np.ndarray[Any, Any]) -> float:
    return float((pixels == (0x25, 0x63, 0xA8)).all(axis=2).mean())


def test_one_epoch_is_marked(tmp_path: Path) -> None:
    """With one epoch, each curve has a mark that an empty history does not have."""
    one = _pixels(plots.plot_training_curves(_history(1), tmp_path / "one.png"))
    none = _pixels(plots.plot_training_curves([], tmp_path / "none.png"))
    assert _share_of_blue(one) > 1.05 * _share_of_blue(none) > 0


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_the_reliability_diagram_of_any_model(tmp_path: Path, accuracy: float) -> None:
    """The diagram is drawn for a model that is always right, and for one that never is."""
    report = report_of(tmp_path, CLASSES, accuracy=accuracy)
    drawn = _pixels(plots.plot_reliability(report, tmp_path / "reliability.png"))
    assert _share_of_blue(drawn) > 1e-4


@pytest.mark.parametrize("channels", [1, 3])
def test_a_gallery_shows_its_images(tmp_path: Path, channels: int) -> None:
    """Each image of a gallery is drawn, grey or in colour."""
    shown = report_of(tmp_path, CLASSES, accuracy=0.5).most_confident_errors
    black = np.zeros((36, 12, 12, channels), np.uint8)
    marked = black.copy()
    marked[[image.position for image in shown]] = 200
    dark = _pixels(plots.plot_gallery(shown, black.__getitem__, tmp_path / "1.png"))
    light = _pixels(plots.plot_gallery(shown, marked.__getitem__, tmp_path / "2.png"))
    assert (dark == 0).all(axis=2).mean() > 0.05
    assert (light == 0).all(axis=2).mean() < 0.01


def test_an_empty_gallery_makes_a_picture_too(tmp_path: Path) -> None:
    """Where nothing went wrong the picture says so."""
    images = random_images(1, 3)
    file = plots.plot_gallery((), images.__getitem__, tmp_path / "errors.png")
    with Image.open(file) as opened:
        assert np.asarray(opened.convert("L")).min() < 200


def test_names_with_signs_of_formulas_are_drawn(tmp_path: Path) -> None:
    """Dollar signs and underscores in class names are letters, not formulas."""
    report = report_of(tmp_path, ("$5_$9", "$a^", "{b$"), accuracy=0.3)
    images = random_images(36, 3)
    shown = report.most_confident_errors
    _pixels(plots.plot_confusion_matrix(report, tmp_path / "confusion.png"))
    _pixels(plots.plot_gallery(shown, images.__getitem__, tmp_path / "errors.png"))


def test_a_real_run_has_its_pictures(finished_run: Run) -> None:
    """The run's report folder holds the pictures under their fixed names."""
    folder = Path(str(finished_run.summary["report"])).parent
    for name in (plots.CONFUSION, plots.RELIABILITY, plots.CURVES, plots.ERRORS):
        _pixels(folder / name)
