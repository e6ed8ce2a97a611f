"""Charts of the saved view that compares runs: curves over epochs, and image grids.

The keys are those of the MLflow 3.17 UI, which ignores charts that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
