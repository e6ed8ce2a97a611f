"""Runs that build on others, from the command to the registry: a teacher, weights, folds."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.serving.checked_package import checked_package
from tests.conftest import patchline_here, write_photos
from tests.flows.training.runs import SHAPES, TINY, ran, refused, store_of, write_unlabelled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_store", "prefect_server")]


def test_an_ensemble_of_label_sets_teaches_a_student(tmp_path: Path) -> None:
    """Both are judged, packaged and registered; the student's table and served answers agree."""
    team, _ = ran(tmp_path, f"{SHAPES} --training.folds 2 --training.ensemble --name team")
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
    sent: list[object] = [*images]
    answers = checked_package(package, 1).package.answers(sent[:1])
    assert next(iter(answers))["error"] is None

    write_unlabelled(tmp_path / "more")
    taught = "--training.teacher team/1 --data.unlabelled more --name student"
    student, said = ran(tmp_path, f"{SHAPES} {taught}")
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
    served = checked_package(package, 1).package.answers(sent)
    for row, answer in zip(table.to_dict("records"), served, strict=True):
        given = [each["label"] for each in answer["labels"]]
        assert json.loads(row["labels"]) == given
        assert given or pd.isna(row["label"])


def test_runs_start_from_a_champion_and_from_a_file(tmp_path: Path) -> None:
    """The lineage is on the run, the table is kept, and the comparison leaves out what both saw."""
    write_photos(tmp_path / "photos", images=24)
    first, said = ran(tmp_path, f"photos {TINY} --model.init champion")
    assert "no champion yet: training starts from random weights" in said
    short = "photos --preset none --training.epochs 1 --model.init"
    second, said = ran(tmp_path, f"{short} champion")
    assert "initial weights: photos/1 (Patchline, 16x16 pixels); training all weights" in said
    client = store_of(tmp_path)
    run = client.get_run(second["run_id"])
    assert run.data.tags["patchline.initial_run_id"] == first["run_id"]
    assert run.data.params["model.init"] == "photos/1"
    assert run.data.params["model.embed_dim"] == "16"
    names = [item.path for item in client.list_artifacts(second["run_id"])]
    assert "initial_weights.csv" in names
    assert "photos/1" in str(client.get_model_version("photos", "2").description)
    weights, _ = sorted(tmp_path.glob(".patchline/runs/*/package/model.safetensors"))
    third, said = ran(tmp_path, f"photos --preset none --model.init {weights}")
    assert "training the head alone" in said
    assert "head: validation accuracy" in said
    assert third["version"] == "3"
    words = "fitted a head, which has no epochs to extend"
    assert words in refused(tmp_path, "--extend last --training.epochs 9")
    assert "has no alias 'none'" in refused(tmp_path, "photos --model.init photos@none")


def test_a_finished_run_is_extended_by_a_new_one(tmp_path: Path) -> None:
    """The new run registers version 2; what cannot be changed or found is refused by name."""
    write_photos(tmp_path / "photos", images=12)
    first, _ = ran(tmp_path, f"photos {TINY}")
    for given, reason in (
        ("--training.epochs 2", "was trained for 2 epochs already"),
        ("", "training.epochs is not set"),
        ("photos --training.epochs 4", "DATA cannot be combined with --extend"),
        ("--model.depth 2 --training.epochs 4", "'model' cannot be changed"),
    ):
        assert reason in refused(tmp_path, f"--extend last {given}")
    extended, said = ran(tmp_path, "--extend last --training.epochs 4")
    assert f"extending the training of run {first['run_id'][:8]} to 4 epochs" in said
    assert extended["version"] == "2"
    client = store_of(tmp_path)
    before, curve = (
        [each.value for each in client.get_metric_history(run["run_id"], "validation/accuracy")]
        for run in (first, extended)
    )
    assert (curve[:2], len(curve)) == (before, 4)
    assert client.get_run(extended["run_id"]).data.params["record.extends"] == first["run_id"]
    write_photos(tmp_path / "photos", images=13)
    longer = f"--extend {first['run_id']} --training.epochs 4"
    assert "The data differs from that of the run" in refused(tmp_path, longer)
