"""Saved views of an experiment for common questions, in the menu "Views" of the MLflow UI.

MLflow 3.17 stores a view as the experiment's tag `mlflow.sharedViewState.ID`, JSON with `name`,
`createdAt`, `updatedAt` (milliseconds) and `state`, which is JSON too: the table's filter, order
and columns. A link with `viewStateShareKey=ID` opens it.

The keys of the charts are those of the MLflow 3.17 UI, which ignores charts that it does not know.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracking_store import client

AUGMENTATION, ERRORS, UNCERTAIN = "augmentation", "confident errors", "least certain"
FALSE_POSITIVES, FALSE_NEGATIVES = "false positives", "false negatives"
"""Keys of the image grids."""
GRIDS = (ERRORS, UNCERTAIN, AUGMENTATION)
"""Of models whose images have one label."""
LABEL_SET_GRIDS = (FALSE_POSITIVES, FALSE_NEGATIVES, AUGMENTATION)
"""Of models whose images have sets of labels."""
_RUNS = 10
"""Maximum number of runs in a chart."""
_CURVES = (
    "validation/accuracy",
    "validation/mAP",
    "validation/loss",
    "train/loss",
    "train/accuracy",
    "learning_rate",
    "images_per_second",
    "matmul_share",
)


def comparing_charts(image_grids: Sequence[str]) -> dict[str, Any]:
    """Return the charts in a view's state."""
    curves = [_curve(metric) for metric in _CURVES]
    grids = [_grid(key) for key in image_grids]
    return {
        "compareRunSections": [_section("curves", "Curves"), _section("images", "Images")],
        "compareRunCharts": [*curves, *grids],
        "isAccordionReordered": True,
    }


def _section(key: str, name: str) -> dict[str, Any]:
    return {
        "uuid": f"patchline-{key}",
        "name": name,
        "display": True,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }


def _chart(key: str, kind: str, section: str) -> dict[str, Any]:
    return {
        "uuid": f"patchline-{key.replace('/', '-').replace(' ', '-')}",
        "type": kind,
        "runsCountToCompare": _RUNS,
        "metricSectionId": f"patchline-{section}",
        "deleted": False,
        "isGenerated": False,
    }


def _curve(metric: str) -> dict[str, Any]:
    return {
        **_chart(metric, "LINE", "curves"),
        "metricKey": metric,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "metric",
        "selectedXAxisMetricKey": "epoch",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
    }


def _grid(key: str) -> dict[str, Any]:
    return {
        **_chart(key, "IMAGE", "images"),
        "imageKeys": [key],
        "step": 0,
        "showRunParams": False,
    }


_TAG = "mlflow.sharedViewState."
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_NOTE_TAG = "mlflow.note.content"

ACCURACY_TAG = "test accuracy"
"""Rounded, with its interval; a metric's own column shows all digits and no interval."""
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


class SavedView(FrozenModel):
    """A view that answers one question about the runs of an experiment."""

    key: str
    """Part of its address."""
    name: str
    """In the menu."""
    question: str
    filter: str = ""
    """A search expression, as in the search box."""
    order_by: str = _STARTED
    ascending: bool = False
    started: str = "ALL"
    """ALL, LAST_24_HOURS, LAST_7_DAYS, LAST_30_DAYS."""
    columns: tuple[str, ...] = _COLUMNS
    image_grids: tuple[str, ...] = ()
    """Keys of the image grids; with some it opens as charts: curves over epochs, then these."""

    @property
    def charts(self) -> bool:
        """Whether it opens as charts."""
        return bool(self.image_grids)

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
            **(comparing_charts(self.image_grids) if self.charts else {}),
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
        question="Which models have the most reliable probabilities?",
        filter="metrics.`test/accuracy` > 0",
        order_by=ERROR,
        ascending=True,
    ),
    SavedView(
        key="curves",
        name="Curves and images",
        question="How did training go, and what does each model get wrong?",
        filter="metrics.`validation/accuracy` > 0",
        image_grids=GRIDS,
    ),
    SavedView(
        key="week",
        name="This week",
        question="Which runs started in the last seven days?",
        started="LAST_7_DAYS",
    ),
    SavedView(
        key="failed",
        name="Failed or stopped",
        question="Which runs failed or were stopped?",
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
        name="Slowest training runs",
        question="Which runs take longest?",
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
        question="Which runs promoted their version to champion?",
        filter="tags.`patchline.promoted` = 'true'",
    ),
    SavedView(
        key="changed-code",
        name="With changed code",
        question="Which runs used uncommitted code?",
        filter="tags.`patchline.dirty` = 'true'",
    ),
)


BEST, CURVES = VIEWS[0], VIEWS[2]


def view_id(view: SavedView) -> str:
    """Return the key in the view's address."""
    return f"patchline-{view.key}"


def path(experiment_id: str, view: SavedView = BEST) -> str:
    """Return the path of a view in the MLflow UI; default: the best models."""
    return addresses.runs_path(experiment_id, view_id(view), charts=view.charts)


def views_by(metric: str) -> tuple[SavedView, ...]:
    """Return the views of runs whose main metric this is: accuracy, or mAP of sets of labels."""
    if metric == "accuracy":
        return VIEWS

    def renamed(text: str) -> str:
        names = ("test/{}`", "validation/{}`", "test {}`")
        for old, new in ((each.format("accuracy"), each.format(metric)) for each in names):
            text = text.replace(old, new)
        return text

    return tuple(
        view.model_copy(
            update={
                "filter": renamed(view.filter),
                "order_by": renamed(view.order_by),
                "columns": tuple(map(renamed, view.columns)),
                "image_grids": LABEL_SET_GRIDS if view.charts else (),
            }
        )
        for view in VIEWS
    )


def write_views(experiment_id: str, description: str, metric: str = "accuracy") -> None:
    """Add the views to an experiment, and a description unless it has one.

    A view that a person has changed and saved is kept.

    Args:
        experiment_id: of the runs.
        description: of the experiment.
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
