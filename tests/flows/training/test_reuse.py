"""A stage whose data, settings, code and packages are unchanged is not computed again."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.workspace.run_memory import live_runs
from tests.conftest import Run
from tests.flows.training.runs import ran, store_of

STAGES = {"prepare", "train", "evaluate", "package"}
PACKAGED = ".patchline/runs/*/package/model.onnx"


def test_no_task_asks_for_a_slot_where_nothing_is_limited(finished_run: Run) -> None:
    """Nor has one the tag of the flow run's owner: each would ask, and wait if SQLite is locked."""
    file = f"file:{finished_run.folder / 'prefect.db'}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
        [flow_run] = database.execute("SELECT tags FROM flow_run").fetchall()
        tasks = [tags for (tags,) in database.execute("SELECT tags FROM task_run")]
    assert live_runs.OWNER in flow_run[0]
    assert len(tasks) > 4
    assert {*map(str, tasks)} == {"[]"}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_same_run_again_computes_nothing_and_has_everything(
    finished_run: Run, tmp_path: Path
) -> None:
    """It says so for each stage, registers a version of its own, and its MLflow run is complete."""
    workspace = Path(shutil.copytree(finished_run.folder, tmp_path / "workspace"))
    again, said = ran(workspace, "photos --preset none --training.epochs 12")
    first = finished_run.summary
    assert again["reused"] == dict.fromkeys(STAGES, first["run_id"])
    assert said.count(f"nothing changed since run {first['run_id'][:8]}") == 4
    assert again["metrics"] == first["metrics"]
    assert again["data_fingerprint"] == first["data_fingerprint"]
    assert (again["version"], again["aliases"]) == ("2", ["challenger"])
    client = store_of(workspace)
    run = client.get_run(again["run_id"])
    assert run.info.status == "FINISHED"
    assert {run.data.tags[f"patchline.reused.{stage}"] for stage in STAGES} == {first["run_id"]}
    for key in ("train/loss", "validation/accuracy"):
        assert len(client.get_metric_history(again["run_id"], key)) == 12
    names = {file.path for file in client.list_artifacts(again["run_id"])}
    assert {"augmentation_preview.png", "config.yaml", "data", "report"} <= names
    folder = Path(again["report"]).parents[1]
    assert folder.parent == workspace / ".patchline/runs"
    kept = ("training/best/model.safetensors", "training/events.jsonl", "package/model.onnx")
    assert all((folder / name).is_file() for name in kept)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_what_changed_is_computed_again_and_what_did_not_is_not(
    finished_run: Run, tmp_path: Path
) -> None:
    """New gates change the report alone, and a run's own config trains nothing again.

    A damaged file is made again, and is the same.
    """
    workspace = Path(shutil.copytree(finished_run.folder, tmp_path / "workspace"))
    short = "--evaluation.explanations=false --promotion.no-package-check"
    gates = "--promotion.automatic --promotion.significance 0.04"
    report, _ = ran(workspace, f"photos --preset none --training.epochs 12 {short} {gates}")
    assert set(report["reused"]) == STAGES - {"evaluate"}
    assert report["aliases"] == ["challenger"]
    assert "images were not used for training" in report["promotion"]["reason"]
    packaged = list(workspace.glob(PACKAGED))
    [whole] = {file.read_bytes() for file in packaged}
    for file in packaged:
        file.unlink()
        file.write_bytes(whole[:-1])
    repaired, said = ran(workspace, f"--config {finished_run.summary['config']} {short}")
    assert "model.onnx is damaged" in said
    assert set(repaired["reused"]) == {"prepare", "train"}
    assert {file.read_bytes() for file in workspace.glob(PACKAGED)} == {whole, whole[:-1]}
    assert len(store_of(workspace).search_model_versions("name = 'photos'")) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_limit_is_that_of_the_run_and_a_repeat_trains_nothing(
    tmp_path: Path, photos: Path
) -> None:
    """Training gets what the other stages leave, and what it got is no part of its key."""
    flags = f"{photos} --preset quick --training.time-limit 60s --evaluation.explanations=false"
    first, said = ran(tmp_path, flags)
    assert "time: 60 s from start to report (reading and planning" in said
    [file] = tmp_path.glob(".patchline/runs/*/training/job.json")
    limit = TrainingJob.from_file(file).limit_seconds
    assert 6 <= limit < 60
    again, said = ran(tmp_path, flags)
    assert again["reused"]["train"] == first["run_id"]
    assert "its training (also limited to 60s) is used again" in said
