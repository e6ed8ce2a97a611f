"""Resuming: what was answered is kept, whatever ended the command, and nothing is mixed."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction import batch_prediction
from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from tests.pipeline.conftest import Exported
from tests.pipeline.packaging.prediction.conftest import (
    assert_same,
    stop_after,
    table_of,
    write_photos,
)

PART = 32


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a part after two batches."""
    monkeypatch.setattr(batch_prediction, "_PART_IMAGES", PART)


def interrupted(package: PackagedModel, folder: Path, out: Path, images: int) -> None:
    """Predict a folder, and fail once so many images are answered."""
    with pytest.raises(RuntimeError):
        table_of(package, folder, out, on_progress=stop_after(images, RuntimeError()))


def test_ctrl_c_keeps_every_answer(package: PackagedModel, photos: Path, tmp_path: Path) -> None:
    """What was answered since the last part is written before the command ends."""
    out, threads = tmp_path / "out.parquet", threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        table_of(package, photos, out, on_progress=stop_after(PART + 1, KeyboardInterrupt()))
    assert predict_images(package, "pets/1", [photos], out).answered_before == PART + 16
    assert threading.active_count() < threads + 8


def test_files_that_come_and_go_between_attempts(package: PackagedModel, tmp_path: Path) -> None:
    """New files are answered wherever they sort; answers of files that are gone stay."""
    out, done = tmp_path / "out.parquet", set[int]()
    folder = write_photos(tmp_path / "photos", 60)
    interrupted(package, folder, out, PART)
    write_photos(folder, 4, first=1000)
    gone = folder / "a" / "0000.png"
    gone.unlink()
    table = table_of(package, folder, out, on_progress=lambda _, total, __: done.add(total))
    assert done == {len(table)} == {64}
    assert set(table["image"]) == {str(f) for f in folder.rglob("*.*")} | {str(gone)}
    assert table["error"].isna().all()


def test_other_images_under_the_same_names_are_predicted_again(
    package: PackagedModel, tmp_path: Path
) -> None:
    """A camera that numbers from the start again; each image has one row, of what is there now."""
    out, folder = tmp_path / "out.parquet", write_photos(tmp_path / "photos", 60)
    others = iter(sorted(write_photos(tmp_path / "friday", 30, first=100).rglob("*.png")))
    names = sorted(folder.rglob("*.png"))
    for stop in (PART + 1, 60):  # the second predicts changed files, of which some change again
        interrupted(package, folder, out, stop)
        for name in names[:5]:
            next(others).replace(name)
    done = set[int]()
    summary = predict_images(
        package, "pets/1", [folder], out, on_progress=lambda _, total, __: done.add(total)
    )
    assert (summary.images, summary.changed) == (60, 5)
    assert done == {60}  # a changed file counts once
    expected = table_of(package, folder, tmp_path / "one_go.parquet")
    assert_same(*(each.sort_values("image") for each in (pd.read_parquet(out), expected)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_id": "pets/2"}, "model pets/1, not pets/2"),
        ({"top_k": 1}, "top_k 3, not 1"),
        ({"probabilities": False}, "probabilities True, not False"),
        ({"coverage": 0.9}, r"coverage None, not 0\.9"),
        ({"images": [Path()]}, "images "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_predictions_are_not_mixed_in(
    package: PackagedModel, photos: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """Another model, folder or setting is refused with the remedy; --restart starts over."""
    out = tmp_path / "out.parquet"
    interrupted(package, photos, out, PART + 1)
    (tmp_path / "1.png").symlink_to(photos / "a/0000.png")
    asked: dict[str, Any] = {"model_id": "pets/1", "images": [photos], **change}
    with pytest.raises(ConfigError, match=rf"{words}.*--restart"):
        predict_images(package, out=out, **asked)
    assert predict_images(package, out=out, restart=True, **asked).answered_before == 0


def test_two_processes_do_not_write_one_table(
    package: PackagedModel, photos: Path, tmp_path: Path
) -> None:
    """The second is told at once; the first one is not disturbed."""
    out, refused = tmp_path / "out.parquet", list[bool]()

    def try_too(_done: int, _total: int, _rate: float) -> None:
        with pytest.raises(ConfigError, match="being written by another process"):
            predict_images(package, "pets/1", [photos], out)
        refused.append(True)

    assert predict_images(package, "pets/1", [photos], out, on_progress=try_too).images == 100
    assert refused


@pytest.mark.parametrize(
    ("writer", "succeed", "kept"),
    [("write_table", 2, 2 * PART), ("ParquetWriter", 0, 100)],
    ids=["a part", "the table at the end"],
)
def test_a_full_disk_keeps_the_parts(
    package: PackagedModel, photos: Path, tmp_path: Path, writer: str, succeed: int, kept: int
) -> None:
    """No space for a part, or for the table at the end, is a sentence; the answers stay."""
    out = tmp_path / "out.parquet"
    real, left = getattr(pyarrow.parquet, writer), iter(range(succeed))

    def filling_up(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pyarrow.parquet, writer, filling_up)
        with pytest.raises(StorageError, match="no space left"):
            predict_images(package, "pets/1", [photos], out)
    assert not out.exists()
    assert predict_images(package, "pets/1", [photos], out).answered_before == kept


def test_a_damaged_part_is_predicted_again(
    package: PackagedModel, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that has changed on disk is no part; the others are kept."""
    out = tmp_path / "out.parquet"
    interrupted(package, photos, out, 2 * PART + 1)
    part = Path(f"{out}.parts/000000000000.parquet")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert predict_images(package, "pets/1", [photos], out).answered_before == PART
    assert "1 of 2 pieces of the unfinished predictions are damaged" in caplog.text
    assert pd.read_parquet(out)["image"].nunique() == 100


KILLED = """
import sys
from pathlib import Path
from patchline.pipeline.packaging.prediction import batch_prediction
from patchline.pipeline.packaging.packaged_model import PackagedModel

batch_prediction._PART_IMAGES = 32
onnx_file, description, photos, out = map(Path, sys.argv[1:])
model = PackagedModel(onnx_file, description, threads=1)
batch_prediction.predict_images(model, "pets/1", [photos] * 40, out)
"""


def test_a_killed_process_loses_at_most_one_part(
    package: PackagedModel, exported_rgb: Exported, photos: Path, tmp_path: Path
) -> None:
    """A real process that gets SIGKILL leaves complete parts; the next call resumes after them."""
    out = tmp_path / "out.parquet"
    arguments = [exported_rgb.onnx_file, exported_rgb.description_file, photos, out]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *map(str, arguments)])
    parts = Path(f"{out}.parts")
    finished = parts / "finished.jsonl"
    try:
        while not finished.exists() or finished.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    whole = finished.read_bytes().count(b"\n")
    assert not out.exists()
    with pytest.raises(KeyboardInterrupt):  # it resumes; 4,000 images are too many for a test
        predict_images(
            package,
            *("pets/1", [photos] * 40, out),
            on_progress=stop_after(PART * whole + 1, KeyboardInterrupt()),
        )
    rows = [pd.read_parquet(part) for part in sorted(parts.glob("*.parquet"))]
    table = pd.concat(rows)
    assert len(table) == PART * whole + 16
    assert not table.duplicated(["argument", "image"]).any()
    assert table["argument"].is_monotonic_increasing
