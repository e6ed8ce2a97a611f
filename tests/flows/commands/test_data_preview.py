"""`patchline data preview`: one picture of images before and after augmentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import write_photos

RunHere = Callable[..., tuple[int, str, str]]
NONE = ("--preset", "none")
"""Nothing is measured, which takes some seconds."""


def test_it_writes_a_picture_and_prints_its_path(run_here: RunHere, tmp_path: Path) -> None:
    """The picture has a column for each epoch; nothing else is left but the manifest."""
    photos = write_photos(tmp_path / "photos", images=8, side=32)
    code, out, err = run_here(
        *("data", "preview", str(photos), "--augmentation.name", "standard", *NONE),
        *("--training.cutmix", "1", "--images", "4", "--epochs", "3", "--picture", "seen.png"),
    )
    assert code == 0, err
    assert out == "seen.png\n"
    with Image.open("seen.png") as picture:
        assert picture.width > 4 * 96
        assert picture.height > 4 * 96
    assert not list(Path.cwd().glob(".patchline/prepared/*"))
    assert not list(Path.cwd().glob("mlflow.db"))


def test_json_has_the_resolved_augmentation(run_here: RunHere, tmp_path: Path) -> None:
    """The answer names the picture and every setting, also those that depend on the data."""
    photos = write_photos(tmp_path / "photos", images=8, side=32)
    code, out, err = run_here(
        *("data", "preview", str(photos), "--augmentation.name", "standard", *NONE, "--json"),
    )
    assert code == 0, err
    answer = json.loads(out)
    assert Path(answer["picture"]).name == "augmentation_preview.png"
    assert Path(answer["picture"]).parent.name == ".patchline"
    assert Path(answer["picture"]).is_file()
    assert answer["augmentation"]["name"] == "standard"
    assert answer["augmentation"]["horizontal_flip"] is False  # too few images to measure it


@pytest.mark.slow
def test_a_preset_shows_the_augmentation_that_it_plans(run_here: RunHere, tmp_path: Path) -> None:
    """Not the default one: what a run with the same arguments would train on."""
    photos = write_photos(tmp_path / "photos", images=8, side=32)
    code, out, err = run_here("data", "preview", str(photos), "--preset", "quick", "--json")
    assert code == 0, err
    assert json.loads(out)["augmentation"]["name"] == "randaugment"
    assert "Planning the training" in err


def test_images_without_labels_are_shown(run_here: RunHere, tmp_path: Path) -> None:
    """Pre-training needs no classes, and neither does its preview."""
    folder = tmp_path / "unlabelled"
    write_photos(tmp_path / "photos", images=8, side=32)
    folder.mkdir()
    for number, file in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
        file.rename(folder / f"{number}.png")
    code, out, err = run_here(
        *("data", "preview", str(folder), "--objective.name", "mae", *NONE, "--picture", "seen.png")
    )
    assert code == 0, err
    assert out == "seen.png\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images", "0"], "--images 0"),
        (["--images", "100", "--epochs", "100"], "at most 1000"),
        (["--augmentation.name", "custom"], "augmentation.file"),
        (["--augmentation.name", "standart"], "standard"),
    ],
)
def test_wrong_input_is_one_sentence(run_here: RunHere, arguments: list[str], words: str) -> None:
    """Numbers that make no picture, a missing file and a misspelt name exit with code 2."""
    code, out, err = run_here("data", "preview", *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not out
