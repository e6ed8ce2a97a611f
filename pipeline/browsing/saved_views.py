"""Views of an experiment that MLflow's page offers in its menu "Views": the usual questions.

MLflow 3.17 keeps a view as the experiment's tag `mlflow.sharedViewState.ID`, JSON with `name`,
`createdAt`, `updatedAt` (milliseconds) and `state`, again JSON: the filter, the order and the
columns of the table. A link with `viewStateShareKey=ID` opens it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pipeline.browsing.charts import comparing_charts
from pipeline.section import Section
from pipeline.tracking import addresses
from pipeline.tracking.tracking_store import client

_TAG = "mlflow.sharedViewState."
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_NOTE_TAG = "mlflow.note.content"

ACCURACY_TAG = "test accuracy"
"""With the interval, in words: the column of a metric shows all digits and no interval."""
ACCURACY, ERROR = "metrics.`test/accuracy`", "metrics.`test/log_loss`"
_STARTED = "attributes.start_time"
_WIDTHS = {
    "attributes.`Created`": 140,
    "attributes.`Duration`": 95,
    "attributes.`Models`": 115,
    "attributes.`Dataset`": 150,
    f"tags.`{ACCURACY_TAG}`": 160,
    "params.`seed`": 70,
    "metrics.`train/seconds`": 120,
}
_METRIC_WIDTH, _OTHER_WIDTH = 105, 115
_RECIPE = (
    "params.`model.name`",
    "params.`model.patch_embedding.name`",
    "params.`training.epochs`",
    "params.`seed`",
)
_COLUMNS = (
    "attributes.`Created`",
    "attributes.`Models`",
    f"tags.`{ACCURACY_TAG}`",
    ACCURACY,
    ERROR,
    *_RECIPE,
    "metrics.`train/seconds`",
    "metrics.`test/ece`",
    "attributes.`Dataset`",
)


class SavedView(Section):
    """A question about the runs of an experiment, and how MLflow's page answers it."""

    key: str
    """Part of its address."""
    name: str
    """In the menu."""
    question: str
    filter: str = ""
    """What a person could type into the search box."""
    order_by: str = _STARTED
    ascending: bool = False
    started: str = "ALL"
    """ALL, LAST_24_HOURS, LAST_7_DAYS, LAST_30_DAYS."""
    columns: tuple[str, ...] = _COLUMNS
    charts: bool = False
    """Whether it opens as charts, with curves over the epochs and the image grids first."""

    def state(self) -> dict[str, Any]:
        """Return the view as the page reads it; what it does not name has the page's default."""
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
            **(comparing_charts() if self.charts else {}),
        }


VIEWS = (
    SavedView(
        key="best",
        name="Best models",
        question="Which models are best?",
        filter="metrics.`test/accuracy` > 0",
        order_by=ACCURACY,
    ),
    SavedView(
        key="calibrated",
        name="Best probabilities",
        question="Whose probabilities can be trusted most?",
        filter="metrics.`test/accuracy` > 0",
        order_by=ERROR,
        ascending=True,
    ),
    SavedView(
        key="curves",
        name="Curves and images",
        question="How did the trainings go, and what does each model get wrong?",
        filter="metrics.`validation/accuracy` > 0",
        charts=True,
    ),
    SavedView(
        key="week",
        name="This week",
        question="What ran during the last seven days?",
        started="LAST_7_DAYS",
    ),
    SavedView(
        key="failed",
        name="Failed or stopped",
        question="What failed, or was stopped?",
        filter="attributes.status != 'FINISHED' AND attributes.status != 'RUNNING'",
        columns=(
            "attributes.`Created`",
            "attributes.`Duration`",
            *_RECIPE,
            "tags.`patchline.host`",
            "metrics.`validation/accuracy`",
            "metrics.`epoch`",
            "attributes.`Dataset`",
        ),
    ),
    SavedView(
        key="slowest",
        name="Slowest trainings",
        question="What takes longest?",
        filter="metrics.`train/seconds` > 0",
        order_by="metrics.`train/seconds`",
        columns=(
            "metrics.`train/seconds`",
            "attributes.`Duration`",
            "metrics.`images_per_second`",
            "metrics.`train/parameters`",
            ACCURACY,
            *_RECIPE,
            "tags.`training.device`",
            "tags.`hardware.processor`",
            "attributes.`Created`",
        ),
    ),
    SavedView(
        key="promoted",
        name="Became champion",
        question="Which versions became champion when they were made?",
        filter="tags.`patchline.promoted` = 'true'",
    ),
    SavedView(
        key="changed-code",
        name="With changed code",
        question="Which runs used code that no commit holds?",
        filter="tags.`patchline.dirty` = 'true'",
    ),
)


BEST, CURVES = VIEWS[0], VIEWS[2]


def view_id(view: SavedView) -> str:
    """Return the key in the view's address."""
    return f"patchline-{view.key}"


def path(experiment_id: str, view: SavedView = BEST) -> str:
    """Return the page of a view inside the MLflow UI; by default the best models."""
    return addresses.runs_path(experiment_id, view_id(view), charts=view.charts)


def write_views(experiment_id: str, description: str) -> None:
    """Give an experiment the views and, unless it has one, its description.

    A view that a person has saved anew under its name stays as it is.
    """
    store = client()
    tags = store.get_experiment(experiment_id).tags
    wanted = {_TAG + view_id(view): view for view in VIEWS}
    moment = int(time.time() * 1000)
    for number, (tag, view) in enumerate(wanted.items()):
        if _is_old(tags.get(tag), view):
            # The menu shows the newest first, so the first one is the newest.
            store.set_experiment_tag(experiment_id, tag, _envelope(view, moment - number))
    for tag, value in ((_KIND_TAG, _KIND), (_NOTE_TAG, description)):
        if tag not in tags:
            store.set_experiment_tag(experiment_id, tag, value)


def _envelope(view: SavedView, moment: int) -> str:
    state = json.dumps(view.state(), separators=(",", ":"))
    return json.dumps({"name": view.name, "createdAt": moment, "updatedAt": moment, "state": state})


def _is_old(saved: str | None, view: SavedView) -> bool:
    """Return whether a saved view is missing, or ours and of an earlier version of Patchline."""
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
