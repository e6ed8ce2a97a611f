"""Sets and warnings in tables and in Python are those of the package's answers."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pandas as pd
import pytest

from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from tests.pipeline.conftest import Exported
from tests.pipeline.ruled_package import package_with_rules, photograph


@pytest.mark.parametrize(
    ("suffix", "coverage"), [("csv", None), ("parquet", 0.9), ("parquet", 0.99)]
)
def test_tables_have_the_answers(
    exported_rgb: Exported, tmp_path: Path, suffix: str, coverage: float | None
) -> None:
    """Each row has the set, its coverage and the warnings of the package's answer.

    A usual image, a dark one, and one that cannot be read.
    """
    package = package_with_rules(exported_rgb, tmp_path / "package")
    images = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    for file, pixels in zip(images, (photograph(2), photograph(2) // 8), strict=False):
        cv2.imwrite(str(file), pixels[:, :, ::-1])
    images[2].write_bytes(b"no image")
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
