"""The labels that a multi-label model gives an image: those at or above their thresholds.

Inlined into every package, so it needs only numpy.

Shapes: B images, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SETS_ARE_FOR_ONE_LABEL = "prediction sets are for models with one label for each image"
"""Why an answer of a multi-label model has no prediction set."""


def thresholds_of(description: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """Return the threshold of each label (K), from `model.json`.

    Returns:
        None for a model with one label for each image.

    Raises:
        ValueError: if a multi-label model lacks them.
    """
    if description.get("task") != "multi_label":
        return None
    values = (description.get("thresholds") or {}).get("values", ())
    if len(values) != len(description["classes"]):
        raise ValueError("a multi-label model needs a threshold for each label")
    return np.asarray(values, np.float64)


def label_answer(
    row_K: np.ndarray[Any, Any],
    thresholds_K: np.ndarray[Any, Any],
    labels: Sequence[str],
    top_k: int,
) -> dict[str, Any]:
    """Return what a multi-label model says about an image.

    `labels` holds those at or above their thresholds, the most probable first; `label` and
    `probability` are the first of them, None if there is none; `top_k` has the most probable
    labels, chosen or not, each with its threshold.
    """
    ranked = np.argsort(-row_K, kind="stable")
    listed = [
        {
            "label": labels[k],
            "probability": float(row_K[k]),
            "threshold": float(thresholds_K[k]),
        }
        for k in ranked
    ]
    chosen = [
        {"label": labels[k], "probability": float(row_K[k])}
        for k in ranked
        if row_K[k] >= thresholds_K[k]
    ]
    first = chosen[0] if chosen else {"label": None, "probability": None}
    return {**first, "labels": chosen, "top_k": listed[: max(1, top_k)]}
