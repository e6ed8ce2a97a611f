"""Tables of a multi-label model's predictions: the labels of each image, and all probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction.batch_prediction import predict_images
from patchline.pipeline.prediction.loaded_model import Model
from patchline.pipeline.prediction.prediction_report import markdown
from tests.conftest import write_photos
from tests.pipeline.conftest import CLASSES, LABEL_THRESHOLDS, Exported


@pytest.fixture(scope="module")
def sets(exported_sets: Exported) -> PackagedModel:
    return PackagedModel(exported_sets.onnx_file, exported_sets.description_file, threads=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", images=4)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_has_the_labels_and_a_probability_for_each(
    sets: PackagedModel, photos: Path, tmp_path: Path, suffix: str
) -> None:
    """As CSV with a column for each label, as Parquet with a list; a damaged image has none."""
    out = tmp_path / f"out.{suffix}"
    predict_images(sets, "shapes/1", [photos], out)
    table = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert list(table.columns[:4]) == ["image", "labels", "label", "probability"]
    for row in table.to_dict("records"):
        if isinstance(row["error"], str):
            assert pd.isna(row["labels"])
            continue
        image = tmp_path / row["image"]
        [answer] = sets.answers([image])
        assert json.loads(row["labels"]) == [each["label"] for each in answer["labels"]]
        found = [row[name] for name in CLASSES] if suffix == "csv" else row["probabilities"]
        [expected] = sets.probabilities(sets.pixels(image)[None])
        assert list(found) == pytest.approx(list(expected), abs=1e-5)
    without = predict_images(sets, "s", [photos], tmp_path / f"w.{suffix}", probabilities=False)
    assert without.images == len(table)
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    assert not {*CLASSES, "probabilities"} & set(read(tmp_path / f"w.{suffix}").columns)


def test_the_report_counts_an_image_for_each_of_its_labels(
    sets: PackagedModel, photos: Path, tmp_path: Path
) -> None:
    """Images without a label have a row of their own."""
    texts = []
    for name in ("out.csv", "out.parquet"):
        table = predict_images(sets, "shapes/1", [photos], tmp_path / name)
        texts.append(markdown("shapes", "shapes", "1", photos, tmp_path / name, table))
    rows = [[line for line in text.splitlines() if line.startswith("| ")] for text in texts]
    assert rows[0] == rows[1]
    labels = pd.read_parquet(tmp_path / "out.parquet")["labels"].dropna().map(json.loads)
    counts = labels.explode().value_counts()
    for label, count in counts.items():
        assert f"| {label} | {count} |" in rows[0]


def test_python_gets_lists_of_labels(sets: PackagedModel, photos: Path) -> None:
    """`Model.predict` has the labels first, then the first of them, and all probabilities."""
    table = Model("shapes", "1", sets).predict(photos, errors="mark")
    assert list(table.columns[:4]) == ["labels", "label", "probability", "error"]
    for name, row in table.iterrows():
        if isinstance(row["error"], str):
            assert row["labels"] is None
            continue
        [answer] = sets.answers([Path(str(name))])
        assert row["labels"] == [each["label"] for each in answer["labels"]]
        assert row["label"] == answer["label"]
        chosen = set(row["labels"])
        thresholds = dict(zip(CLASSES, LABEL_THRESHOLDS.values, strict=True))
        assert chosen == {label for label in CLASSES if row[label] >= thresholds[label]}
    assert table.attrs["unchecked"] == list(sets.judge.unchecked)
