"""`patchline predict` with a model that gives an image any number of labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from patchline.flows.command_line import run_command_line
from tests.conftest import write_photos
from tests.pipeline.registry.made_versions import made_package

THRESHOLDS = (0.5, 0.3, 1.0)


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a registry with one version of `shapes`."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("shapes")
    made_package(tmp_path / "package" / "artifacts", seed=1, thresholds=THRESHOLDS)
    client.create_model_version("shapes", str(tmp_path / "package"))
    client.set_registered_model_alias("shapes", "champion", "1")


@pytest.mark.usefixtures("store")
def test_a_line_names_the_labels_and_those_below_their_thresholds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not known of the model is said once; prediction sets only if they are asked for."""
    write_photos(tmp_path / "photos", images=2)
    assert run_command_line(["predict", "shapes", "photos"]) == 0
    shown = capsys.readouterr()
    assert run_command_line(["predict", "shapes", "photos", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["predictions"]
    for line, answer in zip(shown.out.splitlines(), answers, strict=True):
        given = "  ".join(f"{e['label']} {e['probability']:.1%}" for e in answer["labels"])
        assert line.startswith(f"{answer['image']}  {given or 'no label'}")
        assert "up" in line.partition("(below its threshold: ")[2]
    assert "Calibration: it is not recorded" in shown.err
    assert "the warnings 'blank', 'dark', 'blurred', 'too_small', 'far'" in shown.err
    assert "Prediction sets" not in shown.err
    assert run_command_line(["predict", "shapes", "photos", "--coverage", "0.9"]) == 0
    assert "models with one label for each image" in capsys.readouterr().err
