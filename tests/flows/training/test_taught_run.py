"""A run with a teacher and unlabelled images, from the command line to the registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import draw_photo, patchline, write_photos

SETTINGS = (
    *("--preset", "none", "--model.embed-dim", "24", "--model.depth", "1"),
    *("--model.num-heads", "2", "--data.image-size", "16", "--training.epochs", "2"),
    *("--training.batch-size", "16", "--evaluation.explanations=false", "--json"),
)
TAUGHT = ("--training.teacher", "photos/1", "--data.unlabelled", "more", *SETTINGS)


def ran(*arguments: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run to the end, and return the JSON and what was said."""
    done = patchline("run", *arguments, cwd=folder)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


@pytest.mark.slow
def test_a_student_says_who_taught_it(tmp_path: Path) -> None:
    """Run, card, report and registry name the teacher; its predictions serve the next run, too."""
    from mlflow import MlflowClient

    write_photos(tmp_path / "photos", images=24)
    (tmp_path / "more").mkdir()
    for number in range(30):
        image = Image.fromarray(draw_photo(number % 3, 60 + number))
        image.save(tmp_path / "more" / f"{number}.png")
    first, _ = ran("photos", *SETTINGS, folder=tmp_path)
    student, said = ran("photos", "--name", "student", *TAUGHT, folder=tmp_path)
    assert "teacher: photos/1 (vit, 16x16 pixels; test accuracy" in said
    assert "on the same test images" in said
    assert "30 without labels" in said
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(student["run_id"])
    assert run.data.tags["patchline.teacher"] == "photos/1"
    assert run.data.tags["patchline.teacher_run_id"] == first["run_id"]
    assert run.data.tags["training.teacher_unlabelled"] == "30"
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 2
    folder = Path(tmp_path / student["report"]).parent.parent
    words = "its predictions are 50% of the targets of"
    assert words in (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert words in (folder / "package" / "model_card.md").read_text(encoding="utf-8")
    listed = patchline("models", "student", "--json", cwd=tmp_path)
    [version] = json.loads(listed.out)["models"][0]["versions"]
    assert version["taught_by"].startswith("photos/1 (vit")
    assert "the targets of 30 unlabelled images" in version["taught_by"]
    again, said = ran("photos", "--name", "other", "--seed", "1", *TAUGHT, folder=tmp_path)
    assert "the teacher's predictions are used again" in said
    repeated, said = ran("photos", "--name", "student", *TAUGHT, folder=tmp_path)
    assert "its training is used again" in said
    assert repeated["metrics"] == student["metrics"]
    assert again["run_id"] != student["run_id"]
