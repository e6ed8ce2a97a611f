"""`patchline predict` and `evaluate` with a model that gives an image any number of labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.registry.registered_models import class_tags, task_tag
from tests.conftest import write_photos
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import CLASSES, made_package


@pytest.fixture
def table(tmp_path: Path, own_store: None) -> str:  # noqa: ARG001 - it makes the store
    """Return a table with a row for each label, beside two versions of `shapes`.

    The registry knows of the first alone that it gives sets of labels.
    """
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    client.create_registered_model("shapes")
    made_package(tmp_path / "package" / "artifacts", seed=1, thresholds=(0.5, 0.3, 1.0))
    for tags in ({**class_tags(CLASSES), **task_tag(MULTI_LABEL)}, {}):
        client.create_model_version("shapes", str(tmp_path / "package"), tags=tags)
    photos = write_photos(tmp_path / "photos", images=4)
    files = sorted(photos.rglob("*.png"))
    rows = [
        f"{file.relative_to(photos)},{CLASSES[(number + more) % 3]}"
        for number, file in enumerate(files)
        for more in range(1 + number % 2)
    ]
    (photos / "rows.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    return "photos/rows.csv"


@pytest.mark.usefixtures("table")
def test_a_line_names_the_labels_and_those_below_their_thresholds(run_here: Command) -> None:
    """What is not known of the model is said once; prediction sets only if they are asked for."""
    _, out, err = run_here("predict shapes/1 photos")
    answers = run_here.json("predict shapes/1 photos")["predictions"]
    for line, answer in zip(out.splitlines(), answers, strict=True):
        given = "  ".join(f"{e['label']} {e['probability']:.1%}" for e in answer["labels"])
        assert line.startswith(f"{answer['image']}  {given or 'no label'}")
        assert "up" in line.partition("(below its threshold: ")[2]
    assert "Calibration: it is not recorded" in err
    assert "Prediction sets" not in err
    code, _, err = run_here("predict shapes/1 photos --coverage 0.9")
    assert (code, "models with one label for each image" in err) == (0, True)


def test_the_task_of_the_model_tells_what_several_rows_mean(table: str, run_here: Command) -> None:
    """Where the registry does not know it, the user is asked, and can answer."""
    given = (table, "--seen-images")
    answer = run_here.json("evaluate shapes/2", *given, "--data.task", MULTI_LABEL)
    assert answer["metrics"]["all/mAP"]["n"] == 12
    for version, flag, words in (
        ("1", "--split=test", "it has no split 'test'"),  # that is, the labels are understood
        ("2", "--split=all", "several rows with different labels"),
        ("1", "--data.task=single_label", "Leave --data.task out."),
        ("2", "--data.task=single_label", "Leave --data.task out."),
    ):
        assert words in run_here.refusal("evaluate", f"shapes/{version}", *given, flag)
