"""The whole flow, as a user runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from patchline.flows.commands.run import with_weights
from patchline.pipeline import config_files
from patchline.pipeline.workspace.tracking.tracked_run import FLOW_RUN_TAG
from tests.conftest import Run, write_photos


def test_the_summary_has_the_promised_shape(finished_run: Run) -> None:
    """`run --json` prints run, version, aliases, seconds by stage, metrics and report.

    Three classes of stripes are told apart far better than by guessing.
    """
    summary = finished_run.summary
    assert (summary["status"], summary["name"], summary["version"]) == ("FINISHED", "photos", "1")
    assert summary["aliases"] == ["challenger", "champion"]
    assert set(summary["seconds"]) == {
        "read", "prepare", "train", "evaluate", "package", "register", "promote",
    }  # fmt: skip
    accuracy = summary["metrics"]["test/accuracy"]
    assert set(accuracy) == {"value", "low", "high", "n"}
    assert 1 / 3 < accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert Path(summary["report"]).is_file()
    assert (finished_run.folder / "mlruns").is_dir()  # MLflow's own default, beside mlflow.db
    written = yaml.safe_load((finished_run.folder / summary["config"]).read_text())["model"]
    assert (written["name"], written["patch_embedding"]) == (
        "vit",
        {"name": "conv", "patch_size": 4},
    )


def test_the_run_records_where_everything_comes_from(finished_run: Run) -> None:
    """Config, data, plugins, packages, hardware, the Prefect run, and each epoch exactly once.

    What a person wants to look at is an artifact of the run.
    """
    store: Any = MlflowClient(finished_run.tracking_uri)
    run = store.get_run(finished_run.summary["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["model.patch_embedding.patch_size"] == "4"
    tags = run.data.tags
    for plugin in ("data_source image_folder (patchline ", ", patch_embedding conv (patchline "):
        assert plugin in tags["patchline.plugins"]
    assert ", torch 2." in tags["patchline.packages"]
    assert f", {os.cpu_count()} cores, " in tags["patchline.hardware"]
    assert len(tags[FLOW_RUN_TAG]) == 36
    [logged] = run.inputs.dataset_inputs
    assert logged.dataset.digest == finished_run.summary["data_fingerprint"]
    for key in ("train/loss", "validation/accuracy", "learning_rate"):
        steps = [metric.step for metric in store.get_metric_history(run.info.run_id, key)]
        assert (len(steps), steps) == (12, sorted(set(steps)))
    names = {
        Path(file.path).name
        for folder in (None, "report")
        for file in store.list_artifacts(run.info.run_id, folder)
    }
    assert names >= {
        *("augmentation_preview.png", "config.yaml", "report.html", "report.json"),
        *("confusion_matrix.png", "confusion_matrix_normalised.png", "reliability.png"),
        *("least_certain.png", "likely_label_errors.png", "training_curves.png"),
        *("confident_errors.png", "predictions.parquet"),
    }
    [file] = (finished_run.folder / ".patchline/runs").glob("*/training/events.jsonl")
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kinds = [event["kind"] for event in events]
    before = events[: min(kinds.index(kind) for kind in ("progress", "metrics") if kind in kinds)]
    assert "augmentation_preview.png" in [event.get("name") for event in before]


def test_the_registered_version_leads_back_to_the_run(finished_run: Run) -> None:
    """The version knows its run, its classes and its data; the aliases point at it.

    Its logged model is found by its accuracy.
    """
    store: Any = MlflowClient(finished_run.tracking_uri)
    summary = finished_run.summary
    expected = summary["metrics"]["test/accuracy"]["value"]
    version = store.get_model_version_by_alias("photos", "champion")
    assert version.run_id == summary["run_id"]
    assert json.loads(version.tags["patchline.classes"]) == ["across", "down", "rising"]
    assert version.tags["patchline.data_fingerprint"] == summary["data_fingerprint"]
    report = json.loads(Path(summary["report"]).with_suffix(".json").read_text())
    for tags in (version.tags, store.get_run(version.run_id).data.tags):
        assert tags["patchline.test_images"] == report["images_fingerprint"]
    experiment = store.get_experiment_by_name("photos")
    [logged] = store.search_logged_models(
        [experiment.experiment_id], filter_string="metrics.`test/accuracy` > 0.1"
    )
    [metric] = [metric for metric in logged.metrics if metric.key == "test/accuracy"]
    assert (metric.value, metric.dataset_digest) == (expected, summary["data_fingerprint"])


@pytest.mark.parametrize(
    ("side", "preset", "model", "is_asked"),
    [
        (80, None, {}, True),
        (32, None, {}, False),
        (80, "none", {}, False),
        (80, None, {"init": "none"}, False),
        (80, None, {"depth": 2}, False),
    ],
)
def test_few_photographs_without_weights_are_a_question(
    tmp_path: Path, side: int, preset: str | None, model: dict[str, Any], *, is_asked: bool
) -> None:
    """It says how many there are, what is fetched from where, and how to say no for good."""
    photos = write_photos(tmp_path / "photos", images=4, side=side)
    config = config_files.build_config(
        str(photos), preset_name=preset, file=None, flags={"model": model}
    )
    asked: list[str] = []
    answers = iter(("y", "", "n"))

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    for answer in ("y", "", "n"):
        chosen = with_weights(config, ask)
        if not (is_asked and answer == "y"):
            assert chosen is config
            continue
        assert (chosen.model.download, chosen.preset) == (True, config.preset)
        assert str(chosen.model.init).startswith(("timm:", "torchvision:"))
        words = (
            "12 photographs",
            str(chosen.model.init),
            "`--model.init none`, you are not asked",
            "[y/N]",
        )
        assert all(each in asked[0] for each in words)
    assert len(asked) == (3 if is_asked else 0)


def test_a_script_is_never_asked(tmp_path: Path) -> None:
    """Its standard input is no terminal."""
    photos = write_photos(tmp_path / "photos", images=4, side=80)
    config = config_files.build_config(str(photos), preset_name=None, file=None, flags={})
    assert with_weights(config) is config
