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
from patchline.pipeline.packaging.prediction import batch_prediction
from patchline.pipeline.packaging.prediction.__main__ import predict_part
from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from patchline.pipeline.packaging.prediction.image_files import ImageFile
from patchline.pipeline.packaging.prediction.prediction_job import MODULE, PredictionJob
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.part_files import write_lines
from patchline.pipeline.workers.worker_start import LocalLauncher
from tests.pipeline.packaging.prediction.conftest import write_photos
from tests.pipeline.workers.wide_launcher import Wide


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Wide]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_prediction, "FEWEST_IMAGES", 8)
    made = Wide()
    with worker_start.using_launcher("wide", lambda: made):
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
    with pytest.raises(WorkerError, match=MODULE):
        predict_images(package, "m/1", images, Path("a.parquet"))
    assert sorted(wide.parts) == ["part-0", "part-1", "part-2", "part-3"]
    assert wide.same_place == {archive}  # a node may have to fetch it
    assert [each for each in psutil.Process().children() if MODULE in each.cmdline()] == []
    wide.broken = ""
    table = predict_images(
        package, "m/1", images, Path("a.parquet"), on_progress=lambda done, *_: seen.append(done)
    )
    assert 0 < table.answered_before < max(seen) == 56
    with worker_start.using_launcher("alone", LocalLauncher):
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
            files=write_lines(tmp_path / "files.jsonl", files),
            top_k=1,
            whole=False,
            rows=tmp_path / "rows.parquet",
        )
        with pytest.raises(DataError, match=rf"has no {archive or '/mnt/a/0.png'}, .* same path"):
            predict_part(job, EventWriter(tmp_path / "events.jsonl"))
        assert not job.rows.exists()
