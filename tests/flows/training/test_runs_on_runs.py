"""Runs that build on others, from the command to the registry: a teacher, weights, folds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.registry.serving.checked_package import check_package
from tests.conftest import Run, patchline_here, write_photos
from tests.flows.training.runs import SHAPES, ran, refused, store_of, write_unlabelled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_store", "prefect_server")]
UNCHECKED = "--promotion.no-package-check"
SHORT = f"--evaluation.explanations=false {UNCHECKED}"
WEIGHTS = ".patchline/runs/*/package/model.safetensors"


def test_an_ensemble_of_label_sets_teaches_a_student(tmp_path: Path) -> None:
    """Both are judged, packaged and registered; the student's table and served answers agree."""
    folds = "--training.folds 2 --training.final-model ensemble --name team"
    team, _ = ran(tmp_path, f"{SHAPES} {UNCHECKED} {folds}")
    assert "test/mAP" in team["metrics"]
    package = (tmp_path / team["report"]).parents[1] / "package"
    described = json.loads((package / "model.json").read_text(encoding="utf-8"))
    assert described["members"] == 2
    assert len(described["label_calibration"]["members"]) == 2
    assert "the model that was not trained on it" in described["thresholds"]["basis"]
    rules = described["answers"]
    assert rules["basis"].endswith("the ensemble averages these models")
    assert (rules["far_split"], "far" in rules["unknown"]) == ("test", True)  # of 30 images
    pictures = next((tmp_path / ".patchline/sources/shapes").iterdir())
    images = [str(pictures / f"{number:06}.png") for number in range(12)]

    write_unlabelled(tmp_path / "more")
    taught = "--training.teacher team/1 --data.unlabelled more --name student"
    student, said = ran(tmp_path, f"{SHAPES} {UNCHECKED} {taught}")
    assert "30 without labels" in said
    assert "its mAP on the labelled ones is" in said
    report = tmp_path / student["report"]
    found = json.loads(report.with_name("report.json").read_text("utf-8"))
    package = report.parents[1] / "package"
    described = json.loads((package / "model.json").read_text(encoding="utf-8"))
    assert described["task"] == "multi_label"
    assert described["thresholds"] == found["thresholds"]
    assert described["label_calibration"] == found["calibration"]
    card = (package / "model_card.md").read_text(encoding="utf-8")
    assert "its mAP on the labelled ones is" in card
    assert "| 1 | circle |" in card
    out = ("--out", "table.parquet")
    predicted = patchline_here("predict", "student", *images, *out, cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    table = pd.read_parquet(tmp_path / "table.parquet")
    served = check_package(package, 1).package.answers([*images])
    for row, answer in zip(table.to_dict("records"), served, strict=True):
        given = [each["label"] for each in answer["labels"]]
        assert json.loads(row["labels"]) == given
        assert given or pd.isna(row["label"])


@pytest.fixture
def workspace(finished_run: Run, tmp_path: Path) -> Path:
    """Return a copy of the folder of a finished run."""
    return Path(shutil.copytree(finished_run.folder, tmp_path / "workspace"))


def test_a_run_starts_from_a_champion(finished_run: Run, workspace: Path, tmp_path: Path) -> None:
    """The lineage is on the run, and the table is kept; its head has no epochs to extend.

    A dry run says which weights it would train, of a champion or a file, or that there is none yet.
    """
    photos = str(workspace / "photos")
    for folder, init, words in (
        (tmp_path, "champion", "no champion yet: training starts from random weights"),
        (workspace, "champion", "photos/1 (Patchline, 32x32 pixels); training all weights"),
        (workspace, str(next(workspace.glob(WEIGHTS))), "training the head alone"),
    ):
        tried = ("run", photos, "--preset", "none", "--dry-run", "--model.init", init)
        done = patchline_here(*tried, cwd=folder)
        assert words in done.err
    head = "--model.init champion --training.trainable head"
    second, said = ran(workspace, f"photos --preset none {SHORT} {head}")
    assert "head: validation accuracy" in said
    client = store_of(workspace)
    run = client.get_run(second["run_id"])
    assert run.data.tags["patchline.initial_run_id"] == finished_run.summary["run_id"]
    assert run.data.params["model.init"] == "photos/1"
    names = [item.path for item in client.list_artifacts(second["run_id"])]
    assert "initial_weights.csv" in names
    assert second["version"] == "2"
    assert "photos/1" in str(client.get_model_version("photos", "2").description)
    words = "fitted a head, which has no epochs to extend"
    assert words in refused(workspace, "--extend last --training.epochs 19")
    assert "has no alias 'none'" in refused(workspace, "photos --model.init photos@none")


def test_a_finished_run_is_extended_by_a_new_one(finished_run: Run, workspace: Path) -> None:
    """The new run registers version 2; what cannot be changed or found is refused by name."""
    first = finished_run.summary["run_id"]
    extend = f"--extend {first}"
    for given, reason in (
        ("--training.epochs 12", "was trained for 12 epochs already"),
        ("", "training.epochs is not set"),
        ("photos --training.epochs 13", "DATA cannot be combined with --extend"),
        ("--model.depth 2 --training.epochs 13", "'model' cannot be changed"),
    ):
        assert reason in refused(workspace, f"{extend} {given}")
    extended, said = ran(workspace, f"{extend} --training.epochs 13 {SHORT}")
    assert f"extending the training of run {first[:8]} to 13 epochs" in said
    assert extended["version"] == "2"
    client = store_of(workspace)
    before, curve = (
        [each.value for each in client.get_metric_history(run, "validation/accuracy")]
        for run in (first, extended["run_id"])
    )
    assert (curve[:12], len(curve)) == (before, 13)
    assert client.get_run(extended["run_id"]).data.params["record.extends"] == first
    write_photos(workspace / "photos", images=41)
    longer = f"{extend} --training.epochs 13"
    assert "The data differs from that of the run" in refused(workspace, longer)
