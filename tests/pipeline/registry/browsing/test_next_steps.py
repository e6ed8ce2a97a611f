"""What `patchline run` prints in the end."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.registry.browsing.run_summary import RunSummary, next_steps

PAGE = "http://127.0.0.1:5000/#/experiments/1/runs/ab?workflowType=machine_learning"


def _summary(tracking_uri: str = "sqlite:///mlflow.db", *aliases: str) -> RunSummary:
    return RunSummary(
        run_id="ab",
        name="flowers",
        version="3",
        aliases=aliases,
        status="FINISHED",
        seconds={"train": 50.0},
        metrics={"test/accuracy": MetricEstimate(value=0.9, low=0.85, high=0.94, n=200)},
        report="report.html",
        tracking_uri=tracking_uri,
        config="config.yaml",
        data_fingerprint="f",
        example_image="it's.png",
        notes=(),
        promotion=None,
        page=PAGE,
    )


def test_without_servers_the_run_is_shown_by_mlflow_ui() -> None:
    """The program that shows the runs is named, or only the address if a server shows them."""
    said = next_steps(_summary(), 60.0)
    assert "mlflow ui " in said
    assert said.splitlines()[-1] == f"This run, while `mlflow ui` runs: {PAGE}"
    said = next_steps(_summary("http://127.0.0.1:5000"), 60.0)
    assert "mlflow ui" not in said
    assert said.splitlines()[-1] == f"This run in MLflow: {PAGE}"


def test_what_follows_depends_on_the_champion() -> None:
    """A champion is used by its alias; another version is offered for promotion."""
    assert "predict flowers@champion" in next_steps(_summary("", "champion"), 60.0)
    said = next_steps(_summary("", "challenger"), 60.0, [Path("my plugin.py")])
    assert "predict flowers/3" in said
    assert all(f"{each} flowers/3" in said for each in ("explain", "serve"))
    assert "promote flowers" in said
    assert "--config config.yaml --plugin 'my plugin.py' --fresh" in said
    assert "Took           60 s (train 50, start-up and end 10)" in said


def test_what_makes_the_headline_less_certain_stands_below_it() -> None:
    """Initial weights that may have seen the images, and groups that make the interval wide.

    Images that all have the same labels tell no mAP.
    """
    notes = {"caveat": "may be optimistic", "groups_note": "these 200 images form 9 groups: …"}
    lines = next_steps(_summary().model_copy(update=notes), 60.0).splitlines()
    [headline] = [number for number, line in enumerate(lines) if "Test accuracy" in line]
    assert [line.strip() for line in lines[headline + 1 : headline + 3]] == [*notes.values()]
    exact = {"test/exact_match": _summary().metrics["test/accuracy"]}
    said = next_steps(_summary().model_copy(update={"metrics": exact}), 60.0)
    assert "Test mAP       unknown: no label is on some test images and not on others" in said
