"""Answers of a model that was trained on all images but the test have sets and all warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import patchline_here

SETTINGS = (
    "--data.source", "digits", "--data.image-size", "8", "--preset", "none", "--json",
    "--training.epochs", "1", "--evaluation.corruptions", "0", "--model.embed-dim", "16",
    "--model.depth", "1", "--model.num-heads", "2", "--model.patch-embedding.patch-size", "4",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ensemble", [False, True])
def test_a_model_of_folds_has_sets_and_the_warning_far(
    tmp_path: Path, own_store: None, *, ensemble: bool
) -> None:
    """Sets come from the folds' own images, the distance from the test images; the report says so.

    `evaluate` on the same images does not count their distances as those of new ones.
    """
    del own_store
    folds = ("--training.folds", "2", *(["--training.ensemble"] if ensemble else []))
    done = patchline_here("run", *SETTINGS, *folds, "--name", "team", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    logged = client().get_run(summary["run_id"]).data.metrics
    assert logged["test/set_coverage"] > 0.85
    assert "test/warnings_far" not in logged
    package = Path(tmp_path / summary["report"]).parent.parent / "package"
    rules = json.loads((package / "model.json").read_text(encoding="utf-8"))["answers"]
    final = "the ensemble averages these models" if ensemble else "trained on all of them"
    assert rules["basis"].endswith(final)
    assert all(each["least_probability"] is not None for each in rules["thresholds"])
    assert rules["far"] > 0
    assert rules["far_split"] == "test"
    assert rules["unknown"] == {}
    said = "its share is not measured here: the limit comes from these images"
    card = (package / "model_card.md").read_text(encoding="utf-8")
    assert said in card
    assert "overage is measured, but not guaranteed" in card
    digits = tmp_path / ".patchline" / "sources" / "digits"
    done = patchline_here("evaluate", "team", str(digits), "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    report = Path(tmp_path / json.loads(done.out)["report"]).read_text(encoding="utf-8")
    assert said in report
    assert "not guaranteed" in report
    image = next(digits.rglob("*.png"))
    predicted = patchline_here("predict", "team", str(image), cwd=tmp_path)
    assert "Prediction sets: coverage is measured, but not guaranteed" in predicted.err
