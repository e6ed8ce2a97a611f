"""The saved views of an experiment, on a real store."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.registry.browsing.saved_views import VIEWS
from patchline.pipeline.workspace.tracking import tracking_store

_PAGE = Path(__file__).resolve().parents[4] / "docs/how_to/browse.md"


@pytest.fixture
def store(own_store: None) -> MlflowClient:
    """Return a client of a store of its own."""
    del own_store
    tracking_store.use_store()
    return MlflowClient(os.environ["MLFLOW_TRACKING_URI"])


def test_every_view_answers_its_question(store: MlflowClient) -> None:
    """Filter and order of each view find the right runs in a real store, and the docs list it.

    A store accepts every search in the docs; those on accuracy find the good run.
    """
    experiment = store.create_experiment("birds")
    keys = ("test/accuracy", "test/log_loss", "train/seconds", "validation/accuracy")
    for days, name, metrics, tag in (
        (30, "slow", (0.7, 0.9, 900, 0.5), "promoted"),
        (3, "good", (0.9, 0.5, 10, 0.5), "dated"),
        (2, "sure", (0.8, 0.3, 20, 0.5), "dirty"),
        (1, "failed", (), "dated"),
    ):
        start = int(time.time() - days * 24 * 3600) * 1000
        tags = {f"patchline.{tag}": "true"}
        run = store.create_run(experiment, start_time=start, run_name=name, tags=tags).info.run_id
        for key, value in zip(keys, metrics, strict=False):
            store.log_metric(run, key, value)
        store.set_terminated(run, "FINISHED" if metrics else "FAILED")

    def names(search: str, *order: str) -> list[str]:
        found = store.search_runs([experiment], search, order_by=[*order])
        return [str(run.info.run_name) for run in found]

    assert {
        view.key: names(view.filter, f"{view.order_by} {'ASC' if view.ascending else 'DESC'}")
        for view in VIEWS
    } == {
        "best": ["good", "sure", "slow"],
        "calibrated": ["sure", "good", "slow"],
        "curves": ["sure", "good", "slow"],
        "week": ["failed", "sure", "good", "slow"],  # the UI filters by time
        "failed": ["failed"],
        "slowest": ["slow", "sure", "good"],
        "promoted": ["slow"],
        "changed-code": ["sure"],
    }
    page = _PAGE.read_text("utf-8")
    for view in VIEWS:
        assert f"| {view.name} | {view.question} | `{saved_views.view_id(view)}` |" in page
    [block] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    first, *others = block.splitlines()
    assert len(others) >= 11
    for search in others:
        names(search)
    assert names(first.replace("0.95", "0.85")) == ["good"]


def test_views_saved_by_a_person_are_kept(store: MlflowClient) -> None:
    """Each view is a tag with what the MLflow UI needs to open it.

    An unchanged one is replaced by that of the current Patchline version; changed views, a tag that
    holds something else and a description written by hand are kept.
    """
    experiment, prefix = store.create_experiment("birds"), "mlflow.sharedViewState.patchline-"

    def tags() -> dict[str, str]:
        saved_views.write_views(experiment, "About birds.")
        found: dict[str, str] = store.get_experiment(experiment).tags
        return found

    before = tags()
    for view in VIEWS:
        content = json.loads(before[f"{prefix}{view.key}"])
        assert content["name"] == view.name
        assert isinstance(content["createdAt"], int)
        assert json.loads(content["state"])["selectedColumns"] == list(view.columns)
    assert before["mlflow.note.content"] == "About birds."
    assert before["mlflow.experimentKind"] == "custom_model_development"
    best: dict[str, Any] = json.loads(before[f"{prefix}best"])
    mine = {
        f"{prefix}best": json.dumps({**best, "updatedAt": best["createdAt"] + 1, "state": "{}"}),
        f"{prefix}week": "nothing",
        f"{prefix}failed": '{"createdAt": 1, "updatedAt": 1, "state": 3}',
        "mlflow.note.content": "Mine.",
    }
    old = json.dumps({"name": "Old", "createdAt": 1, "updatedAt": 1, "state": "{}"})
    for tag, content in {**mine, f"{prefix}slowest": old}.items():
        store.set_experiment_tag(experiment, tag, content)
    after = tags()
    assert {tag: after[tag] for tag in mine} == mine
    assert json.loads(after[f"{prefix}slowest"])["name"] == "Slowest training runs"
