"""`patchline evaluate` with a model that gives an image any number of labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from patchline.pipeline.labels.label_sets import MULTI_LABEL
from patchline.pipeline.registry.registered_models import class_tags, task_tag
from tests.conftest import write_photos
from tests.flows.conftest import Command
from tests.pipeline.registry.made_versions import CLASSES, made_package


@pytest.fixture
def table(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a table with a row for each label, beside two versions of `shapes`.

    The registry knows of the first alone that it gives sets of labels.
    """
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("shapes")
    made_package(tmp_path / "package" / "artifacts", thresholds=(0.5, 0.3, 0.6))
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


@pytest.mark.slow
def test_the_task_of_the_model_tells_what_several_rows_mean(table: str, run_here: Command) -> None:
    """Where the registry does not know it, the user is asked, and can answer."""
    seen = ("--seen-images", "--evaluation.corruptions", "2", "--json")
    code, out, err = run_here("evaluate", "shapes/1", table, *seen)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["images"] == answer["metrics"]["all/mAP"]["n"] == 12
    assert answer["robustness"]["images"] == 2
    assert "all/corrupted_mAP" in answer["metrics"]
    code, _, err = run_here("evaluate", "shapes/2", table, *seen)
    assert code == 2
    assert "several rows with different labels" in err
    code, out, err = run_here("evaluate", "shapes/2", table, *seen, "--data.task", MULTI_LABEL)
    assert code == 0, err
    assert json.loads(out)["images"] == 12
    for version in (1, 2):
        given = run_here("evaluate", f"shapes/{version}", table, "--data.task", "single_label")
        assert given[0] == 2
        assert "gives an image any number of labels. Leave --data.task out." in given[2]
