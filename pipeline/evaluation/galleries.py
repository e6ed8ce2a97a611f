"""Select images worth a look: confident errors, uncertain predictions, suspicious labels.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
_NAMED_CLASSES = 3


class ClassProbability(FrozenModel):
    """A class and its predicted probability."""

    name: str
    probability: float


class GalleryImage(FrozenModel):
    """An image and its prediction."""

    path: str
    position: int
    """Row in the table of predictions, from 0."""
    label: str
    label_probability: float
    """Predicted probability of the label."""
    answers: tuple[ClassProbability, ...]
    """The most probable classes, at most three, in descending order."""

    @property
    def predicted(self) -> str:
        """The most probable class."""
        return self.answers[0].name

    @property
    def probability(self) -> float:
        """Predicted probability of the most probable class."""
        return self.answers[0].probability


def confident_errors(predictions: Predictions) -> Array:
    """Return the indices of all errors, highest confidence first."""
    probabilities = predictions.probabilities_NK
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != predictions.labels_N)
    order: Array = wrong[np.argsort(-probabilities.max(axis=1)[wrong], kind="stable")]
    return order


def least_certain(predictions: Predictions) -> Array:
    """Return the indices of all images, smallest margin between the two top classes first.

    The margin is defined as by Scheffer et al. 2001 (Active Hidden Markov Models, section 3).
    """
    probabilities = predictions.probabilities_NK
    margins = np.empty(len(probabilities))
    for rows in row_slices(probabilities.shape):
        two = np.partition(probabilities[rows], -2, axis=1)[:, -2:]
        margins[rows] = two[:, 1] - two[:, 0]
    order: Array = np.argsort(margins, kind="stable")
    return order


def likely_label_errors(predictions: Predictions) -> Array:
    """Return the indices of images whose label confident learning flags, most suspicious first.

    A class's threshold is the mean probability of the class on its own images. A label is flagged
    if another class reaches its threshold on the image, is the most probable of those that do, and
    is more probable than the label. Images are ranked by the margin between the two (Northcutt,
    Jiang, Chuang 2021, arXiv 1911.00068: equation 1, ranked as in its "prune by noise rate").
    The probabilities must be for images that the model was not trained on.
    """
    probabilities, labels = predictions.probabilities_NK, predictions.labels_N
    own = probabilities[np.arange(len(labels)), labels]
    images = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=own, minlength=probabilities.shape[1])
    thresholds = np.where(images > 0, sums / np.maximum(images, 1), np.inf)
    confident, passes = np.empty(len(labels), np.int64), np.empty(len(labels), bool)
    for rows in row_slices(probabilities.shape):
        passing = np.where(probabilities[rows] >= thresholds, probabilities[rows], -1.0)
        confident[rows], passes[rows] = passing.argmax(axis=1), passing.max(axis=1) >= 0
    doubtful = np.flatnonzero(passes & (confident != labels))
    margins = probabilities[doubtful, confident[doubtful]] - own[doubtful]
    doubtful, margins = doubtful[margins > 0], margins[margins > 0]
    order: Array = doubtful[np.argsort(-margins, kind="stable")]
    return order


def gallery(
    predictions: Predictions, classes: Sequence[str], places: Array
) -> tuple[GalleryImage, ...]:
    """Describe the images at the given indices of the predictions."""
    probabilities = predictions.probabilities_NK[places]
    paths = predictions.table["path"].iloc[places]
    top = np.argsort(-probabilities, axis=1, kind="stable")[:, :_NAMED_CLASSES]
    return tuple(
        GalleryImage(
            path=str(path),
            position=int(position),
            label=classes[label],
            label_probability=float(row[label]),
            answers=tuple(
                ClassProbability(name=classes[k], probability=float(row[k])) for k in best
            ),
        )
        for path, position, label, row, best in zip(
            paths,
            predictions.positions[places],
            predictions.labels_N[places],
            probabilities,
            top,
            strict=True,
        )
    )
