"""A stage whose data, settings, code and packages are unchanged is not computed again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Run, patchline, patchline_here, write_photos

NONE = ("--preset", "none")
STAGES = {"prepare", "train", "evaluate", "package"}
SETTINGS = [
    "--preset",
    "none",
    "--training.epochs",
    "2",
    "--training.threads",
    "1",
    "--model.depth",
    "1",
]


def _client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def _newest(folder: Path) -> Path:
    return max((folder / ".patchline/runs").iterdir())


def _weights(run: Path) -> str:
    return hashlib.sha256((run / "training/best/model.safetensors").read_bytes()).hexdigest()


def test_the_same_run_again_computes_nothing_and_has_everything(
    finished_run: Run, tmp_path: Path
) -> None:
    """It says so for each stage, registers a version of its own, and its MLflow run is complete."""
    workspace = Path(shutil.copytree(finished_run.folder, tmp_path / "workspace"))
    flags = (*NONE, "--training.epochs", "12", "--json")
    done = patchline_here("run", "photos", *flags, cwd=workspace)
    assert done.code == 0, done.err
    first, again = finished_run.summary, done.json
    assert again["reused"] == dict.fromkeys(STAGES, first["run_id"])
    assert done.err.count(f"nothing changed since run {first['run_id'][:8]}") == 4
    assert again["metrics"] == first["metrics"]
    assert again["data_fingerprint"] == first["data_fingerprint"]
    assert (again["version"], again["aliases"]) == ("2", ["challenger"])
    client = _client(workspace)
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
def test_slices_by_a_column_of_a_table_evaluate_again(finished_run: Run, tmp_path: Path) -> None:
    """The images are those of the folder, so nothing but the report is computed, from the table."""
    shutil.copytree(finished_run.folder / ".patchline/stages", tmp_path / ".patchline/stages")
    photos = Path(shutil.copytree(finished_run.folder / "photos", tmp_path / "photos"))
    lines = ["image,label,site"]
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        lines.append(f"{file.relative_to(photos)},{file.parent.name},{'ab'[number % 2]}")
    (photos / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = [
        "--preset",
        "none",
        "--training.epochs",
        "12",
        "--evaluation.slices",
        "column:site",
        "--json",
    ]
    done = patchline("run", photos / "labels.csv", *flags, cwd=tmp_path)
    assert done.code == 0, done.err
    assert set(done.json["reused"]) >= {"train"}
    report = json.loads(Path(done.json["report"]).with_name("report.json").read_text("utf-8"))
    assert {(part["column"], part["value"]) for part in report["slices"]} == {
        ("column:site", "a"),
        ("column:site", "b"),
    }


@pytest.mark.slow
def test_what_changed_is_computed_again_and_what_did_not_is_not(tmp_path: Path) -> None:
    """Gates, settings of the training, an image, a damaged file, `--fresh`: each as it should."""
    write_photos(tmp_path / "photos", images=12)

    def run(*flags: str) -> Finished:
        done = patchline("run", "photos", *SETTINGS, *flags, "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        return done

    first = run()
    weights = _weights(_newest(tmp_path))
    assert first.json["reused"] == {}
    gates = ("--promotion.automatic", "--promotion.no-package-check")
    report = run("--promotion.significance", "0.04", *gates)  # the report shows it
    assert set(report.json["reused"]) == {"prepare", "train", "package"}
    assert report.json["aliases"] == ["challenger"]
    assert "images were not used for training" in report.json["promotion"]["reason"]
    assert set(run("--seed", "1").json["reused"]) == {"prepare"}
    fresh = run("--fresh")
    assert fresh.json["reused"] == {}
    assert _weights(_newest(tmp_path)) == weights
    shutil.rmtree(Path(first.json["config"]).parent)  # an old folder is nobody's foundation
    assert run().json["reused"] == dict.fromkeys(STAGES, fresh.json["run_id"])
    newest = _newest(tmp_path)
    best = newest / "training/best/model.safetensors"
    best.write_bytes(best.read_bytes()[:-1])
    repaired = run()
    assert "model.safetensors is damaged" in repaired.err
    assert set(repaired.json["reused"]) == {"prepare"}
    assert _weights(_newest(tmp_path)) == weights
    (tmp_path / "photos/across/000.png").unlink()
    assert run().json["reused"] == {}
    versions = _client(tmp_path).search_model_versions("name = 'photos'")
    assert len(versions) == 7


@pytest.mark.slow
def test_the_resolved_config_and_a_time_limit_are_answered_too(tmp_path: Path) -> None:
    """A run's own config.yaml asks for the same; so does the same time limit, which is said."""
    write_photos(tmp_path / "photos", images=12)
    flags = [
        "photos",
        "--preset",
        "none",
        "--training.time-limit",
        "3s",
        "--training.threads",
        "1",
        "--json",
    ]
    first = patchline("run", *flags, cwd=tmp_path)
    assert first.code == 0, first.err
    again = patchline("run", *flags, cwd=tmp_path)
    assert again.json["reused"]["train"] == first.json["run_id"]
    assert "also limited to 3s" in again.err
    config = first.json["config"]
    same = patchline("run", "--config", config, "--json", cwd=tmp_path)
    assert same.json["reused"]["train"] == first.json["run_id"]
    record = json.loads(next((tmp_path / ".patchline/stages/train").iterdir()).read_text("utf-8"))
    assert record["run_id"] == first.json["run_id"]
