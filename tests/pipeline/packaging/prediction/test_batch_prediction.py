"""Batch prediction: the evaluation's probabilities, in constant memory, and to be gone on with."""

from __future__ import annotations

import gc
import json
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.errors import DataError, WorkerError
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction import batch_prediction
from patchline.pipeline.packaging.prediction.batch_prediction import (
    PREDICTION,
    PredictionJob,
    predict_images,
    predict_part,
)
from patchline.pipeline.packaging.prediction.image_files import ImageFile
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_parts import ROWS_FILE, write_lines
from patchline.pipeline.workers.worker_start import LocalLauncher
from tests.conftest import draw_photo
from tests.pipeline.conftest import CLASSES, SIDE, Exported
from tests.pipeline.packaging.prediction.conftest import table_of, write_photos
from tests.pipeline.ruled_package import package_with_rules, photograph
from tests.pipeline.workers.wide_launcher import Wide

PART = 32


def test_probabilities_are_those_of_the_evaluation(
    package: PackagedModel, exported_rgb: Exported, photos: Path, tmp_path: Path
) -> None:
    """The torch model on decoded images, as the evaluation asks it, agrees within 1e-5."""
    table = table_of(package, photos, tmp_path / "out.parquet")
    decoded = [decode_image(Path(name).read_bytes(), 3) for name in table["image"]]
    stored = np.stack([resize_image(pixels, SIDE, SIDE, "crop") for pixels in decoded])
    trained = exported_rgb.model
    logits_NK = predict_logits(trained.model, stored, np.arange(len(stored)), trained.image)
    expected_NK = softmax(trained.calibration.logits(logits_NK.numpy()))
    assert len(table) == 100
    np.testing.assert_allclose(np.stack(table["probabilities"].tolist()), expected_NK, atol=1e-5)
    assert table["label"].tolist() == [CLASSES[k] for k in expected_NK.argmax(axis=1)]
    np.testing.assert_allclose(table["probability"], expected_NK.max(axis=1), atol=1e-5)


def test_csv_and_parquet_agree(package: PackagedModel, photos: Path, tmp_path: Path) -> None:
    """Both tables say the same; the CSV file leaves the probabilities of all classes out."""
    odd = tmp_path / 'a "quoted", name\n.png'
    odd.write_bytes(b"no image")
    given = [photos / "a", odd]
    for name, all_classes in (("out.csv", True), ("out.parquet", True), ("short.parquet", False)):
        done = predict_images(package, "pets/1", given, tmp_path / name, probabilities=all_classes)
        assert done.images == 35
    csv, parquet = pd.read_csv(tmp_path / "out.csv"), pd.read_parquet(tmp_path / "out.parquet")
    said = ["set", "coverage", "warnings", "unchecked"]
    assert list(csv.columns) == ["image", "label", "probability", "error", "top_k", *said]
    assert list(parquet.columns) == [*csv.columns, "probabilities"]
    assert list(pd.read_parquet(tmp_path / "short.parquet").columns) == list(csv.columns)
    for column in ("image", "label", "error"):
        assert csv[column].fillna("").tolist() == parquet[column].fillna("").tolist()
    np.testing.assert_allclose(csv["probability"], parquet["probability"], atol=1e-6)
    metadata = pyarrow.parquet.read_schema(tmp_path / "out.parquet").metadata
    assert json.loads(metadata[b"classes"]) == list(CLASSES)
    assert metadata[b"model"] == b"pets/1"


def test_damaged_images_have_their_reasons_and_stop_nothing(
    package: PackagedModel, photos: Path, tmp_path: Path
) -> None:
    """Every unreadable file is a row with its own error; twenty of them are listed."""
    folder = write_photos(tmp_path / "photos", 5)
    good = (photos / "a" / "0000.png").read_bytes()
    for number in range(25):
        (folder / f"broken-{number:02d}.png").write_bytes(good[: 40 + number])
    (folder / "empty.jpg").touch()
    summary = predict_images(package, "pets/1", [folder], tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet").set_index("image")
    assert (summary.images, summary.unreadable, len(summary.first_errors)) == (31, 26, 20)
    assert table.loc[str(folder / "empty.jpg"), "error"] == "the file is empty"
    broken = table[table["error"].notna()]
    assert len(broken) == 26
    assert broken[["label", "probability", "probabilities"]].isna().all(axis=None)
    assert set(broken["top_k"]) == {"[]"}
    assert table["label"].notna().sum() == 5


def test_a_folder_of_parts_with_other_files_is_not_emptied(
    package: PackagedModel, photos: Path, tmp_path: Path
) -> None:
    """Files of somebody else beside the parts survive."""
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts" / "mine.txt").write_text("keep")
    predict_images(package, "pets/1", [photos / "a"], tmp_path / "out.csv")
    assert [f.name for f in (tmp_path / "out.csv.parts").iterdir()] == ["mine.txt"]


def test_memory_does_not_grow_with_the_number_of_images(
    package: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as many images take no more memory, neither Python's nor Arrow's."""
    monkeypatch.setattr(batch_prediction, "_PART_IMAGES", PART)
    folder = tmp_path / "photos"
    folder.mkdir()
    original = folder / "0.png"
    Image.fromarray(draw_photo(0, 0, SIDE)).save(original)
    peaks: dict[int, tuple[int, int]] = {}
    arrow = 0

    def note_arrow(_done: int, _total: int, _rate: float) -> None:
        nonlocal arrow
        arrow = max(arrow, pa.total_allocated_bytes())

    written = 1
    for count in (34, 64, 192):  # the first one warms up
        for number in range(written, count):
            (folder / f"{number}.png").hardlink_to(original)
        written, arrow = count, 0
        gc.collect()
        tracemalloc.start()
        predict_images(package, "m", [folder], tmp_path / "out.parquet", on_progress=note_arrow)
        peaks[count] = (tracemalloc.get_traced_memory()[1], arrow)
        tracemalloc.stop()
    python_growth, arrow_growth = (b - a for a, b in zip(peaks[64], peaks[192], strict=True))
    names = 192 * 250  # the entries of one folder are sorted at once, up to 100,000 of them
    assert python_growth < names + 100_000
    assert arrow_growth < 100_000


def test_a_table_inside_the_folder_is_no_image(package: PackagedModel, tmp_path: Path) -> None:
    """An old table and the parts of the new one are passed over."""
    folder = write_photos(tmp_path / "photos", 6)
    for _ in range(2):
        assert predict_images(package, "m", [folder], folder / "out.csv").images == 6


def test_csv_of_odd_names_computes_nothing(
    package: PackagedModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in a CSV are text for a spreadsheet; those in a Parquet file stay as they are."""
    monkeypatch.chdir(tmp_path)
    names = ["=1+1.png", "@x.png", "a\x1b]0;t\x07.png"]
    for name in names:
        Path(name).symlink_to(photos / "a/0000.png")
    for out in ("out.csv", "out.parquet"):
        predict_images(package, "pets/1", [Path(name) for name in names], Path(out))
    cells = list(pd.read_csv("out.csv")["image"])
    assert cells == ["'=1+1.png", "'@x.png", r"a\x1b]0;t\x07.png"]
    assert list(pd.read_parquet("out.parquet")["image"]) == names


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Wide]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_prediction, "FEWEST_IMAGES", 8)
    made = Wide()
    with worker_start.use_launcher("wide", lambda: made):
        yield made


def test_parts_give_the_table_of_one_process(
    package: PackagedModel, wide: Wide, tmp_path: Path
) -> None:
    """Same rows in the same order, unreadable ones too, though a part failed in between."""
    folder = write_photos(tmp_path / "photos", 40)
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "\udcff.png").write_bytes((folder / "a" / "0000.png").read_bytes())
    archive = Path(shutil.make_archive(str(tmp_path / "more"), "zip", folder / "a"))
    images, seen = [folder, archive], list[int]()
    wide.broken = "part-3"
    with pytest.raises(WorkerError, match=PREDICTION.module):
        predict_images(package, "m/1", images, Path("a.parquet"))
    assert len(wide.parts) == 4
    assert wide.same_place == {archive}  # a node may have to fetch it
    wide.broken = ""
    table = predict_images(
        package, "m/1", images, Path("a.parquet"), on_progress=lambda done, *_: seen.append(done)
    )
    assert 0 < table.answered_before < max(seen) == 56
    with worker_start.use_launcher("alone", LocalLauncher):
        alone = predict_images(package, "m/1", images, Path("b.parquet"))
    assert (table.images, table.unreadable) == (alone.images, alone.unreadable) == (56, 1)
    assert table.first_errors == alone.first_errors
    pd.testing.assert_frame_equal(pd.read_parquet("a.parquet"), pd.read_parquet("b.parquet"))
    assert not list(tmp_path.glob("*.parts"))


def test_a_node_without_the_images_writes_no_rows(tmp_path: Path) -> None:
    """They would be errors, and final; a folder that could not be opened is not an image."""
    locked = ImageFile(0, "/mnt/a", "a", "the folder cannot be opened: denied")
    for archive in ("", "/mnt/photos.zip"):
        files = [locked, ImageFile(0, "/mnt/a/0.png", "0", "", archive)]
        job = PredictionJob(
            onnx_file=tmp_path / "model.onnx",
            description_file=tmp_path / "model.json",
            model_id="m/1",
            top_k=1,
            whole=False,
        )
        write_lines(tmp_path / ROWS_FILE, files)
        with pytest.raises(DataError, match=rf"has no {archive or '/mnt/a/0.png'}, .* same path"):
            predict_part(job, EventWriter(tmp_path / "events.jsonl"))
        assert not list(tmp_path.glob("*.parquet"))


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
