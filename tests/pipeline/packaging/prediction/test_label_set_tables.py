"""Tables of a multi-label model's predictions: the labels of each image, and all probabilities."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from patchline.pipeline.packaging.prediction.loaded_model import Model
from patchline.pipeline.packaging.prediction.prediction_report import markdown
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
    out, short = tmp_path / f"out.{suffix}", tmp_path / f"short.{suffix}"
    summary = predict_images(sets, "shapes/1", [photos], out)
    predict_images(sets, "shapes/1", [photos], short, probabilities=False)
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    table = read(out)
    assert list(table.columns[:4]) == ["image", "labels", "label", "probability"]
    assert not {*CLASSES, "probabilities"} & set(read(short).columns)
    assert table["labels"].isna().tolist() == table["error"].notna().tolist()
    counts = Counter[str]()
    for row in table[table["error"].isna()].to_dict("records"):
        [answer] = sets.answers([tmp_path / row["image"]])
        labels = json.loads(row["labels"])
        assert labels == [each["label"] for each in answer["labels"]]
        counts.update(labels)
        found = [row[name] for name in CLASSES] if suffix == "csv" else row["probabilities"]
        [expected] = sets.probabilities(sets.pixels(tmp_path / row["image"])[None])
        assert list(found) == pytest.approx(list(expected), abs=1e-5)
    text = markdown("shapes", "shapes", "1", photos, out, summary)
    for label, count in counts.items():  # an image counts for each of its labels
        assert f"| {label} | {count} |" in text


def test_python_gets_lists_of_labels(sets: PackagedModel, photos: Path) -> None:
    """`Model.predict` has the labels first, then the first of them, and all probabilities."""
    table = Model("shapes", "1", sets).predict(photos, errors="mark")
    assert list(table.columns[:4]) == ["labels", "label", "probability", "error"]
    thresholds = dict(zip(CLASSES, LABEL_THRESHOLDS.values, strict=True))
    for name, row in table.iterrows():
        if isinstance(row["error"], str):
            assert row["labels"] is None
            continue
        [answer] = sets.answers([Path(str(name))])
        assert row["labels"] == [each["label"] for each in answer["labels"]]
        assert row["label"] == answer["label"]
        assert set(row["labels"]) == {each for each in CLASSES if row[each] >= thresholds[each]}
    assert table.attrs["unchecked"] == list(sets.judge.unchecked)
