"""The thresholds of a multi-label classifier: from which probability an image has a label.

Shapes: N images, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from pydantic import model_validator

from patchline.pipeline.evaluation.metrics.label_calibration import FEWEST, enough, listed
from patchline.pipeline.evaluation.metrics.row_pieces import column_pieces
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted

Array = np.ndarray[Any, Any]
NEUTRAL = 0.5
"""The threshold of a label that too few images determine."""


class LabelThresholds(FrozenModel):
    """An image has label k if its calibrated probability is `values[k]` or more."""

    values: tuple[float, ...]
    """Of each label, between 0 and 1."""
    fitted: tuple[bool, ...]
    """Whether a label's threshold was fitted; otherwise it is 0.5."""
    fewest: int = FEWEST
    """Images with a label, and images without it, below which its threshold is 0.5."""
    images: int = 0
    """Number of images that they were fitted on."""
    basis: str = "highest F1 on the validation images"
    """What the fitted ones maximise."""

    @model_validator(mode="after")
    def _of_equal_length(self) -> Self:
        if len(self.values) != len(self.fitted):
            raise ValueError("values and fitted have one value for a label")
        if not all(0 <= value <= 1 for value in self.values):
            raise ValueError("thresholds lie between 0 and 1")
        return self

    @classmethod
    def neutral(cls, num_labels: int) -> Self:
        """Return 0.5 for each label, of images that are not there."""
        return cls(values=(NEUTRAL,) * num_labels, fitted=(False,) * num_labels)

    def predicted(self, probabilities_NK: Array) -> Array:
        """Return 1 where an image has a label, else 0 (N, K uint8)."""
        return (probabilities_NK >= np.array(self.values)).astype(np.uint8)

    def unfitted(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the labels, of all K, whose threshold is 0.5 because few images have them."""
        return tuple(label for label, is_fit in zip(labels, self.fitted, strict=True) if not is_fit)

    def sentence(self, labels: Sequence[str]) -> str:
        """Return how the thresholds were chosen, without a full stop.

        Args:
            labels: names of the K labels.
        """
        others = self.unfitted(labels)
        how = f"one for each label, by the {self.basis}"
        if not others:
            return f"{how} ({self.images:,})"
        images = counted(self.images, "validation image")
        it = by_number(len(others), "it", "them")
        rest = f"fewer than {self.fewest} of {images} have {it}, or lack {it}"
        if not self.images:
            rest = "there is no validation image that the model was not trained on"
        if len(others) == len(labels):
            return f"{NEUTRAL} for every label: {rest}"
        return f"{how} ({self.images:,}); {NEUTRAL} for {listed(others)}: {rest}"


def fit_label_thresholds(probabilities_NK: Array, labels_NK: Array) -> LabelThresholds:
    """Choose each label's threshold by the highest F1 on images that the model did not learn from.

    A threshold lies halfway between two probabilities that occur, and of equally good ones it is
    the one closest to 0.5; so the last digit of a probability decides no image. A label of fewer
    than `FEWEST` images, or that fewer lack, keeps 0.5.

    Args:
        probabilities_NK: calibrated probabilities.
        labels_NK: 1 where an image has a label, else 0.
    """
    images, count = labels_NK.shape
    fitted_K = enough(labels_NK.sum(axis=0, dtype=np.int64), images)
    values_K = np.full(count, NEUTRAL)
    for k, probabilities_N in column_pieces(probabilities_NK, np.flatnonzero(fitted_K)):
        values_K[k] = _highest_f1(probabilities_N.astype(np.float64), labels_NK[:, k])
    return LabelThresholds(
        values=tuple(values_K.tolist()), fitted=tuple(fitted_K.tolist()), images=images
    )


def _highest_f1(probabilities_N: Array, labels_N: Array) -> float:
    order = np.argsort(-probabilities_N, kind="stable")
    sorted_N, has_label = probabilities_N[order], labels_N[order].astype(np.int64)
    last = np.append(np.flatnonzero(np.diff(sorted_N)), len(sorted_N) - 1)
    hits = np.cumsum(has_label)[last]
    f1 = 2 * hits / (last + 1 + hits[-1])
    halfway = (sorted_N[last] + np.append(sorted_N[last[:-1] + 1], 0.0)) / 2
    best = halfway[f1 == f1.max()]
    return float(best[np.abs(best - NEUTRAL).argmin()])
