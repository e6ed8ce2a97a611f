"""`patchline data preview`: one picture of images before and after augmentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import write_photos
from tests.made.servers import Command

NONE = ("--preset", "none")
"""Nothing is measured, which takes some seconds."""


def test_it_writes_a_picture_and_prints_its_path(run_here: Command, tmp_path: Path) -> None:
    """The picture has a column for each epoch; nothing else is left but the manifest.

    JSON has every setting, also those that depend on the data.
    """
    photos = write_photos(tmp_path / "photos", images=8, side=32)
    standard = ("data", "preview", str(photos), "--augmentation.name", "standard", *NONE)
    columns = ("--training.cutmix", "1", "--images", "4", "--epochs", "3", "--picture", "seen.png")
    assert run_here.out(*standard, *columns) == "seen.png\n"
    with Image.open("seen.png") as picture:
        assert min(picture.size) > 4 * 96
    assert not list(Path.cwd().glob(".patchline/prepared/*"))
    assert not list(Path.cwd().glob("mlflow.db"))
    answer = run_here.json(*standard)
    assert Path(answer["picture"]).parts[-2:] == (".patchline", "augmentation_preview.png")
    assert Path(answer["picture"]).is_file()
    assert answer["augmentation"]["name"] == "standard"
    assert answer["augmentation"]["horizontal_flip"] is False  # too few images to measure it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images", "0"], "--images 0"),
        (["--images", "100", "--epochs", "100"], "at most 1000"),
        (["--augmentation.name", "custom", *NONE], "augmentation.file"),
        (["--augmentation.name", "standart"], "standard"),
    ],
)
def test_wrong_input_is_one_sentence(run_here: Command, arguments: list[str], words: str) -> None:
    """Numbers that make no picture, a missing file and a misspelt name exit with code 2."""
    assert words in run_here.refusal("data", "preview", *arguments)
