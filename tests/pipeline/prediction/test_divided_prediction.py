"""Prediction divided among workers gives the table of one process, and loses nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from patchline.pipeline.errors import DataError, WorkerError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction import batch_prediction
from patchline.pipeline.prediction.__main__ import predict_part
from patchline.pipeline.prediction.batch_prediction import predict_images
from patchline.pipeline.prediction.image_files import ImageFile
from patchline.pipeline.prediction.prediction_job import MODULE, PredictionJob
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.local_launcher import LocalLauncher
from patchline.pipeline.workers.part_files import write_lines
from tests.pipeline.conftest import Exported
from tests.pipeline.prediction.predicted_photos import write_photos
from tests.pipeline.workers.wide_launcher import Wide


@pytest.fixture(scope="module")
def model(exported_rgb: Exported) -> PackagedModel:
    return PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_photos(tmp_path_factory.mktemp("photos"), 40)
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "\udcff.png").write_bytes((folder / "a" / "0000.png").read_bytes())
    return folder


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Wide]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_prediction, "FEWEST_IMAGES", 8)
    made = Wide()
    with active_launcher.using("wide", lambda: made):
        yield made


def test_parts_give_the_table_of_one_process(
    model: PackagedModel, photos: Path, wide: Wide, tmp_path: Path
) -> None:
    """Same rows in the same order, the unreadable one too; progress reaches the total."""
    seen: list[int] = []
    archive = Path(shutil.make_archive(str(tmp_path / "more"), "zip", photos / "a"))
    images = [photos, archive]
    table = predict_images(
        model, "m/1", images, Path("a.parquet"), on_progress=lambda done, *_: seen.append(done)
    )
    assert sorted(wide.parts) == ["part-0", "part-1", "part-2", "part-3"]
    assert wide.same_place == {archive}  # a node may have to fetch it
    with active_launcher.using("alone", LocalLauncher):
        alone = predict_images(model, "m/1", images, Path("b.parquet"))
    assert (table.images, table.unreadable) == (alone.images, alone.unreadable) == (56, 1)
    assert table.first_errors == alone.first_errors
    one, other = (pd.read_parquet(tmp_path / name) for name in ("a.parquet", "b.parquet"))
    pd.testing.assert_frame_equal(one, other)
    assert max(seen) == 56
    assert not list(tmp_path.glob("*.parts"))


def test_finished_parts_are_kept_if_a_later_one_fails(
    model: PackagedModel, photos: Path, wide: Wide, tmp_path: Path
) -> None:
    """The same command predicts the rest; no worker is left."""
    wide.broken = "part-3"
    with pytest.raises(WorkerError, match=MODULE):
        predict_images(model, "m/1", [photos], Path("a.parquet"))
    assert [each for each in psutil.Process().children() if MODULE in each.cmdline()] == []
    wide.broken = ""
    table = predict_images(model, "m/1", [photos], Path("a.parquet"))
    assert 0 < table.answered_before < 42
    assert pd.read_parquet(tmp_path / "a.parquet")["image"].is_unique
    assert table.images == 42


@pytest.mark.parametrize("archive", ["", "/mnt/photos.zip"])
def test_a_node_without_the_images_writes_no_rows(tmp_path: Path, archive: str) -> None:
    """They would be errors, and final; a folder that could not be opened is not an image."""
    files = [ImageFile(0, "/mnt/a", "a", "the folder cannot be opened: denied")]
    files += [ImageFile(0, f"/mnt/a/{number}.png", str(number), "", archive) for number in range(2)]
    job = PredictionJob(
        onnx_file=tmp_path / "model.onnx",
        description_file=tmp_path / "model.json",
        model_id="m/1",
        files=write_lines(tmp_path / "files.jsonl", files),
        top_k=1,
        whole=False,
        rows=tmp_path / "rows.parquet",
    )
    with pytest.raises(DataError, match=rf"has no {archive or '/mnt/a/0.png'}, .* same path"):
        predict_part(job, EventWriter(tmp_path / "events.jsonl"))
    assert not job.rows.exists()
