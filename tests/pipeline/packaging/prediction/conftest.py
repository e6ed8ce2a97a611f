"""Small images in folders, and tables of predictions of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from tests.conftest import draw_photo
from tests.pipeline.conftest import Exported


def write_photos(folder: Path, count: int, first: int = 0) -> Path:
    """Write small images into three folders, as PNG and JPEG in turn, and return the folder."""
    for number in range(first, first + count):
        inside = folder / "abc"[number % 3]
        inside.mkdir(parents=True, exist_ok=True)
        suffix = "jpg" if number % 2 else "png"
        drawn = Image.fromarray(draw_photo(number % 4, number, 20 + number % 7))
        drawn.save(inside / f"{number:04d}.{suffix}")
    return folder


def stop_after(images: int, error: BaseException) -> Callable[[int, int, float], None]:
    """Return an `on_progress` that raises once so many images are answered."""

    def on_progress(done: int, _total: int, _rate: float) -> None:
        if done >= images:
            raise error

    return on_progress


def table_of(model: PackagedModel, folder: Path, out: Path, **options: Any) -> pd.DataFrame:
    """Predict a folder and return the table."""
    predict_images(model, "pets/1", [folder], out, **options)
    return pd.read_parquet(out)


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Check that two tables name the same images with the same answers."""
    for column in ("image", "label", "error"):
        assert one[column].tolist() == other[column].tolist()
    np.testing.assert_allclose(
        np.stack(one["probabilities"].tolist()),
        np.stack(other["probabilities"].tolist()),
        atol=1e-6,
    )


@pytest.fixture(scope="session")
def package(exported_rgb: Exported) -> PackagedModel:
    """Return a package; tests must not change it."""
    return PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 100 images in several folders and formats; tests must not change them."""
    return write_photos(tmp_path_factory.mktemp("batch") / "photos", 100)
