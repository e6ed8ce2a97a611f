"""Sets and warnings in tables and in Python are those of the package's answers."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pandas as pd
import pyarrow.parquet as pq
import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction.batch_prediction import predict_images
from patchline.pipeline.prediction.loaded_model import Model
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


@pytest.mark.parametrize("coverage", [None, 0.9, 0.99])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_have_the_answers(
    package: PackagedModel, images: list[Path], tmp_path: Path, suffix: str, coverage: float | None
) -> None:
    """Each row has the set, its coverage and the warnings of the package's answer."""
    out = tmp_path / f"out.{suffix}"
    predict_images(package, "pets/1", images, out, coverage=coverage)
    table = pq.read_table(out).to_pandas() if suffix == "parquet" else pd.read_csv(out)
    answers = package.answers(list(images), coverage=coverage)
    for (_, row), answer in zip(table.iterrows(), answers, strict=True):
        written = None if pd.isna(row["set"]) else json.loads(row["set"])
        assert written == answer["set"]
        assert json.loads(row["warnings"]) == answer["warnings"]
        if answer["error"] is None:
            assert row["coverage"] == answer["coverage"]
    assert next(each["kind"] for each in answers[1]["warnings"]) == "dark"


def test_another_coverage_does_not_resume_a_table(
    package: PackagedModel, images: list[Path], tmp_path: Path
) -> None:
    """Sets of two coverages do not mix in one table."""
    out = tmp_path / "out.csv"
    parts = out.with_name("out.csv.parts")
    parts.mkdir()
    given = [str(image) for image in images]
    state = {"model": "pets/1", "images": given, "top_k": 3, "probabilities": False}
    (parts / "state.json").write_text(json.dumps({**state, "coverage": 0.9}))
    with pytest.raises(ConfigError, match=r"coverage 0\.9, not 0\.95"):
        predict_images(package, "pets/1", images, out, coverage=0.95)


def test_python_has_the_answers(package: PackagedModel, images: list[Path]) -> None:
    """`Model.predict` returns the same columns; an image that cannot be read has no set."""
    table = Model("pets", "1", package).predict(images, errors="mark")
    answers = package.answers(list(images))
    assert list(table.columns[:3]) == ["label", "probability", "error"]
    assert list(table.columns[-3:]) == ["set", "coverage", "warnings"]
    assert list(table["set"]) == [answer["set"] for answer in answers]
    assert list(table["warnings"]) == [answer["warnings"] for answer in answers]
    assert table["set"].iloc[2] is None
