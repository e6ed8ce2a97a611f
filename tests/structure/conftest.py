"""Folders in which what the pages show can be executed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Run, draw_photo, write_photos
from tests.structure.pages import ROOT, blocks


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `flowers`, `examples` and the settings file that the docs show."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("garden")
    write_photos(folder / "drawn", images=12)
    for drawn, flower in (("across", "daisy"), ("down", "rose"), ("rising", "tulip")):
        shutil.copytree(folder / "drawn" / drawn, folder / "flowers" / flower)
    Image.fromarray(draw_photo(0, 99)).save(folder / "photo.png")
    (folder / "more_photos").mkdir()
    for number in range(9):
        image = Image.fromarray(draw_photo(number % 3, 60 + number))
        image.save(folder / "more_photos" / f"{number}.png")
    shutil.copytree(ROOT / "examples", folder / "examples")
    [settings] = blocks(ROOT / "docs/reference/settings.md", "yaml")
    (folder / "run.yaml").write_text(settings, "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `flowers` and the model of that name: a copy of the finished run's."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("trained") / "workspace"
    shutil.copytree(finished_run.folder, folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "photos").rename(folder / "flowers")
    store = f"sqlite:///{folder / 'mlflow.db'}"
    MlflowClient(store, store).rename_registered_model("photos", "flowers")
    return folder
