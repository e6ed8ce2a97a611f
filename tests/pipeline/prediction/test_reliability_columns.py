"""Sets and warnings in tables and in Python are those of the package's answers."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pandas as pd
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction.batch_prediction import predict_images
from tests.pipeline.conftest import Exported
from tests.pipeline.ruled_package import package_with_rules, photograph


@pytest.fixture
def package(exported_rgb: Exported, tmp_path: Path) -> PackagedModel:
    """Return a package with rules."""
    return package_with_rules(exported_rgb, tmp_path / "package")


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Return files of a usual image, a dark one, and one that cannot be read."""
    for name, pixels in (("a.png", photograph(2)), ("b.png", photograph(2) // 8)):
        cv2.imwrite(str(tmp_path / name), pixels[:, :, ::-1])
    (tmp_path / "c.png").write_bytes(b"no image")
    return [tmp_path / name for name in ("a.png", "b.png", "c.png")]


@pytest.mark.parametrize(
    ("suffix", "coverage"), [("csv", None), ("parquet", 0.9), ("parquet", 0.99)]
)
def test_tables_have_the_answers(
    package: PackagedModel, images: list[Path], tmp_path: Path, suffix: str, coverage: float | None
) -> None:
    """Each row has the set, its coverage and the warnings of the package's answer."""
    out = tmp_path / f"out.{suffix}"
    predict_images(package, "pets/1", images, out, coverage=coverage)
    table = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out)
    answers = package.answers(list(images), coverage=coverage)
    for (_, row), answer in zip(table.iterrows(), answers, strict=True):
        written = None if pd.isna(row["set"]) else json.loads(row["set"])
        assert written == answer["set"]
        assert json.loads(row["warnings"]) == answer["warnings"]
        assert answer["error"] or row["coverage"] == answer["coverage"]
    assert answers[1]["warnings"][0]["kind"] == "dark"
