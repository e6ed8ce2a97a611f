"""Saved views of an experiment for common questions, in the menu "Views" of the MLflow UI.

MLflow 3.17 stores a view as the experiment's tag `mlflow.sharedViewState.ID`, JSON with `name`,
`createdAt`, `updatedAt` (milliseconds) and `state`, which is JSON too: the table's filter, order
and columns. A link with `viewStateShareKey=ID` opens it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pydantic import Field, TypeAdapter

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracking_store import client

AUGMENTATION, ERRORS, UNCERTAIN = "augmentation", "confident errors", "least certain"
FALSE_POSITIVES, FALSE_NEGATIVES = "false positives", "false negatives"
"""Keys of the image grids."""
_TAG = "mlflow.sharedViewState."
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_NOTE_TAG = "mlflow.note.content"

_STARTED = "attributes.start_time"
_WIDTHS = {
    "attributes.`Created`": 140,
    "attributes.`Duration`": 95,
    "attributes.`Models`": 115,
    "attributes.`Dataset`": 150,
    "tags.`test accuracy`": 160,
    "params.`seed`": 70,
    "metrics.`train/seconds`": 120,
}
_METRIC_WIDTH, _OTHER_WIDTH = 105, 115


class SavedView(FrozenModel):
    """A view that answers one question about the runs of an experiment."""

    key: str
    """A word for the view, which is part of its address."""
    name: str
    """The view's name in the menu."""
    question: str
    filter: str = ""
    """A search expression, as in the search box."""
    order_by: str = _STARTED
    ascending: bool = False
    started: str = "ALL"
    """The period in which the runs were started: ALL, LAST_24_HOURS, LAST_7_DAYS, LAST_30_DAYS."""
    columns: tuple[str, ...]
    charts: dict[str, Any] = Field(default_factory=dict)
    """Charts that the view opens with: curves over epochs, then grids of images; empty for a
    table."""

    def state(self) -> dict[str, Any]:
        """Return the view as the MLflow UI reads it; missing keys have the UI's defaults."""
        return {
            "searchFilter": self.filter,
            "orderByKey": self.order_by,
            "orderByAsc": self.ascending,
            "startTime": self.started,
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": list(self.columns),
            "columnOrder": list(self.columns),
            "columnWidths": {column: _width(column) for column in self.columns},
            **self.charts,
        }


def views_by(metric: str) -> tuple[SavedView, ...]:
    """Return the views of runs whose main metric this is: accuracy, or mAP of sets of labels."""
    grids = (ERRORS, UNCERTAIN) if metric == "accuracy" else (FALSE_POSITIVES, FALSE_NEGATIVES)
    return TypeAdapter(tuple[SavedView, ...]).validate_json(
        render_markdown(
            "saved_views.json.j2", __package__, metric=metric, image_grids=(*grids, AUGMENTATION)
        )
    )


VIEWS = views_by("accuracy")
BEST, CURVES = VIEWS[0], VIEWS[2]


def view_id(view: SavedView) -> str:
    """Return the key in the view's address."""
    return f"patchline-{view.key}"


def path(experiment_id: str, view: SavedView = BEST) -> str:
    """Return the path of a view in the MLflow UI; default: the best models."""
    return addresses.runs_path(experiment_id, view_id(view), charts=bool(view.charts))


def write_views(experiment_id: str, description: str, metric: str = "accuracy") -> None:
    """Add the views to an experiment, and a description unless it has one.

    A view that a person has changed and saved is kept.

    Args:
        experiment_id: ID of the experiment that the runs belong to.
        description: the description to add, in Markdown, unless the experiment has one.
        metric: the main metric of its runs.
    """
    store = client()
    tags = store.get_experiment(experiment_id).tags
    views = {_TAG + view_id(view): view for view in views_by(metric)}
    moment = int(time.time() * 1000)
    for number, (tag, view) in enumerate(views.items()):
        if _is_old(tags.get(tag), view):
            # The menu shows the newest view first.
            store.set_experiment_tag(experiment_id, tag, _envelope(view, moment - number))
    for tag, value in ((_KIND_TAG, _KIND), (_NOTE_TAG, description)):
        if tag not in tags:
            store.set_experiment_tag(experiment_id, tag, value)


def _envelope(view: SavedView, moment: int) -> str:
    state = json.dumps(view.state(), separators=(",", ":"))
    return json.dumps({"name": view.name, "createdAt": moment, "updatedAt": moment, "state": state})


def _is_old(saved: str | None, view: SavedView) -> bool:
    """Return whether a view is missing, or unchanged since another Patchline version wrote it."""
    if saved is None:
        return True
    try:
        content = json.loads(saved)
        untouched = content["createdAt"] == content["updatedAt"]
        return bool(untouched and json.loads(content["state"]) != view.state())
    except (ValueError, KeyError, TypeError):
        return False


def _width(column: str) -> int:
    other = _METRIC_WIDTH if column.startswith("metrics.") else _OTHER_WIDTH
    return _WIDTHS.get(column, other)
