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
from mlflow.entities import ViewType

from patchline.pipeline.browsing import saved_views
from patchline.pipeline.browsing.saved_views import VIEWS, SavedView
from patchline.pipeline.tracking import tracking_store

_PAGE = Path(__file__).resolve().parents[3] / "docs/how_to/browse.md"
_DAY = 24 * 3600 * 1000


@pytest.fixture
def store(own_store: None) -> MlflowClient:
    """Return a client of a store of its own."""
    del own_store
    tracking_store.use_store()
    return MlflowClient(os.environ["MLFLOW_TRACKING_URI"])


@pytest.fixture
def experiment(store: MlflowClient) -> str:
    """Return an experiment with a good, a sure, a failed and an old slow run."""
    made = store.create_experiment("birds")
    now = int(time.time() * 1000)
    _run(store, made, "good", {"accuracy": 0.9, "log_loss": 0.5, "seconds": 10}, {})
    _run(store, made, "sure", {"accuracy": 0.8, "log_loss": 0.3, "seconds": 20}, {"dirty": "true"})
    _run(store, made, "failed", {}, {}, status="FAILED")
    slow = {"accuracy": 0.7, "log_loss": 0.9, "seconds": 900}
    _run(store, made, "slow", slow, {"promoted": "true"}, start=now - 30 * _DAY)
    return made


def _run(
    store: MlflowClient,
    experiment: str,
    name: str,
    metrics: dict[str, float],
    tags: dict[str, str],
    *,
    status: str = "FINISHED",
    start: int | None = None,
) -> None:
    named = {f"patchline.{key}": value for key, value in tags.items()}
    run = store.create_run(experiment, start_time=start, run_name=name, tags=named).info.run_id
    for key, value in metrics.items():
        store.log_metric(run, f"{'train' if key == 'seconds' else 'test'}/{key}", value)
    if metrics:
        store.log_metric(run, "validation/accuracy", 0.5)
    store.set_terminated(run, status)


def _answer(store: MlflowClient, experiment: str, view: SavedView) -> list[str]:
    direction = "ASC" if view.ascending else "DESC"
    found = store.search_runs(
        [experiment], view.filter, ViewType.ACTIVE_ONLY, order_by=[f"{view.order_by} {direction}"]
    )
    return [str(run.info.run_name) for run in found]


def test_every_view_answers_its_question(store: MlflowClient, experiment: str) -> None:
    """Filter and order of each view find the right runs in a real store, and the docs list it."""
    answers = {view.key: _answer(store, experiment, view) for view in VIEWS}
    assert answers == {
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


def test_searches_in_the_docs_work(store: MlflowClient, experiment: str) -> None:
    """A store accepts every search in the docs; those on accuracy find the good run."""
    [block] = re.findall(r"```text\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
    searches = block.splitlines()
    assert len(searches) >= 12
    for search in searches:
        store.search_runs([experiment], search)
    first = searches[0].replace("0.95", "0.85")
    assert [run.info.run_name for run in store.search_runs([experiment], first)] == ["good"]
