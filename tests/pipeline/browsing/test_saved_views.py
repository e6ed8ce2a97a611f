"""The saved views of an experiment, on a real store."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from patchline.pipeline.browsing import saved_views
from patchline.pipeline.browsing.saved_views import VIEWS, SavedView
from tests.conftest import Run

_PAGE = Path(__file__).resolve().parents[3] / "docs/how_to/browse.md"
_DAY = 24 * 3600 * 1000


@pytest.fixture
def store(finished_run: Run, tmp_path: Path) -> MlflowClient:
    """Return a store of its own with four runs in one experiment, the last one long ago."""
    shutil.copy(finished_run.folder / "mlflow.db", tmp_path / "mlflow.db")
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return MlflowClient(os.environ["MLFLOW_TRACKING_URI"])


@pytest.fixture
def experiment(store: MlflowClient) -> str:
    """Return an experiment with a good, a poor, a failed and an old slow run."""
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
    """Filter and order of each view find the right runs in a real store."""
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


def test_a_view_is_saved_in_mlflow_format(store: MlflowClient, experiment: str) -> None:
    """An experiment gets a tag for each view, with what the MLflow UI needs to open it."""
    saved_views.write_views(experiment, "About birds.")
    tags = store.get_experiment(experiment).tags
    for view in VIEWS:
        content = json.loads(tags[f"mlflow.sharedViewState.patchline-{view.key}"])
        assert content["name"] == view.name
        assert isinstance(content["createdAt"], int)
        assert json.loads(content["state"])["selectedColumns"] == list(view.columns)
    assert tags["mlflow.note.content"] == "About birds."
    assert tags["mlflow.experimentKind"] == "custom_model_development"


def test_views_have_a_dozen_columns_at_most() -> None:
    """A view fits on a screen, next to the name of the run."""
    assert max(len(view.columns) for view in VIEWS) <= 12


def test_views_saved_by_a_person_are_kept(store: MlflowClient, experiment: str) -> None:
    """Changed views and a description written by hand are kept."""
    saved_views.write_views(experiment, "About birds.")
    tag = "mlflow.sharedViewState.patchline-best"
    content: dict[str, Any] = json.loads(store.get_experiment(experiment).tags[tag])
    content |= {"updatedAt": content["createdAt"] + 1, "state": '{"searchFilter": "mine"}'}
    store.set_experiment_tag(experiment, tag, json.dumps(content))
    store.set_experiment_tag(experiment, "mlflow.note.content", "Mine.")
    saved_views.write_views(experiment, "About birds.")
    tags = store.get_experiment(experiment).tags
    assert json.loads(tags[tag]) == content
    assert tags["mlflow.note.content"] == "Mine."


@pytest.mark.parametrize("old", ["{}", "nothing", '{"createdAt": 1, "updatedAt": 1, "state": 3}'])
def test_an_unreadable_tag_is_kept(store: MlflowClient, experiment: str, old: str) -> None:
    """A tag with the name of a view that holds something else is not changed."""
    tag = "mlflow.sharedViewState.patchline-best"
    store.set_experiment_tag(experiment, tag, old)
    saved_views.write_views(experiment, "")
    assert store.get_experiment(experiment).tags[tag] == old


def test_a_view_of_an_earlier_version_is_updated(store: MlflowClient, experiment: str) -> None:
    """An unchanged view is replaced by that of the current Patchline version."""
    tag = "mlflow.sharedViewState.patchline-best"
    old = {"name": "Best", "createdAt": 1, "updatedAt": 1, "state": "{}"}
    store.set_experiment_tag(experiment, tag, json.dumps(old))
    saved_views.write_views(experiment, "")
    assert json.loads(store.get_experiment(experiment).tags[tag])["name"] == "Best models"


def test_the_docs_list_every_view() -> None:
    """docs/how_to/browse.md lists the name, question and key of each view."""
    page = _PAGE.read_text("utf-8")
    for view in VIEWS:
        assert f"| {view.name} | {view.question} | `{saved_views.view_id(view)}` |" in page


def test_searches_in_the_docs_work(store: MlflowClient, experiment: str) -> None:
    """A store accepts every search in the docs; those on accuracy find the good run."""
    [block] = re.findall(r"```text\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
    searches = block.splitlines()
    assert len(searches) >= 12
    for search in searches:
        store.search_runs([experiment], search)
    first = searches[0].replace("0.95", "0.85")
    assert [run.info.run_name for run in store.search_runs([experiment], first)] == ["good"]
