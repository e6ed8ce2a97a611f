"""Folds of several labels become one model, which then teaches another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchline.pipeline.serving.checked_package import checked_package
from tests.conftest import patchline_here

SETTINGS = (
    "--data.source", "shapes", "--data.options.images", "200", "--data.image-size", "16",
    "--preset", "none", "--training.epochs", "2", "--evaluation.corruptions", "0",
    "--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2", "--json",
)  # fmt: skip


@pytest.mark.slow
def test_an_ensemble_of_label_sets_teaches_a_student(tmp_path: Path, own_store: None) -> None:
    """Both are judged, packaged, registered and answer; unlabelled images are taught, too."""
    del own_store
    folds = ("--training.folds", "2", "--training.ensemble", "--name", "team")
    done = patchline_here("run", *SETTINGS, *folds, cwd=tmp_path)
    assert done.code == 0, done.err
    team = json.loads(done.out)
    assert "test/mAP" in team["metrics"]
    package = Path(tmp_path / team["report"]).parent.parent / "package"
    described = json.loads((package / "model.json").read_text(encoding="utf-8"))
    assert described["members"] == 2
    assert len(described["label_calibration"]["members"]) == 2
    assert "the model that was not trained on it" in described["thresholds"]["basis"]
    rules = described["answers"]
    assert rules["basis"].endswith("the ensemble averages these models")
    assert rules["dark"] is not None
    assert (rules["far_split"], "far" in rules["unknown"]) == ("test", True)  # of 30 images
    pictures = next((tmp_path / ".patchline" / "sources" / "shapes").iterdir())
    answers = checked_package(package, 1).package.answers([str(pictures / "000001.png")])
    assert next(iter(answers))["error"] is None
    (tmp_path / "more").mkdir()
    other = ("--data.source", "shapes", "--data.options.images", "30", "--data.options.seed", "9")
    assert patchline_here("data", "inspect", *other, cwd=tmp_path).code == 0
    for folder in (tmp_path / ".patchline" / "sources" / "shapes").glob("30-*"):
        for file in folder.glob("*.png"):
            shutil.copy(file, tmp_path / "more" / file.name)
    taught = ("--training.teacher", "team/1", "--data.unlabelled", "more", "--name", "student")
    done = patchline_here("run", *SETTINGS, *taught, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "test mAP" in done.err
    assert "30 without labels" in done.err
    assert "its mAP on the labelled ones is" in done.err
    student = json.loads(done.out)
    card = Path(tmp_path / student["report"]).parent.parent / "package" / "model_card.md"
    assert "its mAP on the labelled ones is" in card.read_text(encoding="utf-8")
