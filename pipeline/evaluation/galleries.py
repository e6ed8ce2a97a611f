"""Select images worth a look: confident errors, uncertain predictions, suspicious labels.

Where images have sets of labels, what is selected are pairs of an image and a label: false
positives, false negatives, and labels that an image seems to lack.

Shapes: N images, K classes or labels, M pairs of image and label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.frozen_model import FrozenModel

if TYPE_CHECKING:
    import pandas as pd

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

    @property
    def caption(self) -> tuple[tuple[str, ...], str]:
        """The names of its classes, of which the second was predicted, and what is said of it."""
        return (self.label, self.predicted), f"{self.probability:.0%}"


def confident_errors(predictions: Predictions) -> Array:
    """Return the indices of all errors, highest confidence first."""
    probabilities = predictions.probabilities_NK
    wrong = np.flatnonzero(predictions.predicted != predictions.labels)
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
    probabilities, labels = predictions.probabilities_NK, predictions.labels
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
    return tuple(
        GalleryImage(
            path=str(path),
            position=int(position),
            label=classes[label],
            label_probability=float(row[label]),
            answers=_most_probable(row, classes, _NAMED_CLASSES),
        )
        for path, position, label, row in zip(
            paths,
            predictions.positions[places],
            predictions.labels[places],
            probabilities,
            strict=True,
        )
    )


def _most_probable(row_K: Array, classes: Sequence[str], most: int) -> tuple[ClassProbability, ...]:
    best = np.argsort(-row_K, kind="stable")[:most]
    return tuple(ClassProbability(name=classes[k], probability=float(row_K[k])) for k in best)


_NAMED_LABELS = 6


class Pairs(NamedTuple):
    """Pairs of image and label, the most striking first."""

    images_M: Array
    labels_M: Array

    def of_one_image_each(self, most: int) -> Pairs:
        """Return the first pair of each image, at most so many."""
        _, first = np.unique(self.images_M, return_index=True)
        chosen = np.sort(first)[:most]
        return Pairs(self.images_M[chosen], self.labels_M[chosen])


class LabelSetImage(FrozenModel):
    """An image with one label in question."""

    path: str
    position: int
    """Row in the table of predictions, from 0."""
    label: str
    """The label in question."""
    probability: float
    """Its predicted probability."""
    threshold: float
    """Probability from which on the label is predicted."""
    labels: tuple[str, ...]
    """The image's labels in the data."""
    predicted: tuple[str, ...]
    """The predicted labels."""
    answers: tuple[ClassProbability, ...]
    """The most probable labels, at most six, in descending order."""

    @property
    def caption(self) -> tuple[tuple[str, ...], str]:
        """The name of its label, and what is said of it."""
        return (self.label,), f"{self.probability:.0%}, threshold {self.threshold:.0%}"


def false_positives(predictions: Predictions) -> Pairs:
    """Return predicted labels that an image does not have, the most probable first."""
    wrong = (predictions.predicted > 0) & (predictions.labels == 0)
    return _rank(wrong, -predictions.probabilities_NK)


def true_positives(predictions: Predictions) -> Pairs:
    """Return predicted labels that an image has, the most probable first."""
    right = (predictions.predicted > 0) & (predictions.labels > 0)
    return _rank(right, -predictions.probabilities_NK)


def false_negatives(predictions: Predictions) -> Pairs:
    """Return labels of an image that are not predicted, the least probable first."""
    missed = (predictions.predicted == 0) & (predictions.labels > 0)
    return _rank(missed, predictions.probabilities_NK)


def missing_labels(predictions: Predictions) -> Pairs:
    """Return labels that images seem to lack in the data, the most suspicious first.

    Confident learning for each label alone (Northcutt, Jiang, Chuang 2021, arXiv 1911.00068,
    equation 1): an image without a label is suspected to lack it if the label is more probable than
    not, and at least as probable as on average on the images that have it. The probabilities must
    be for images that the model was not trained on.
    """
    has, probabilities = predictions.labels > 0, predictions.probabilities_NK
    images_K = has.sum(axis=0)
    means_K = (probabilities * has).sum(axis=0) / np.maximum(images_K, 1)
    usual_K = np.where(images_K > 0, np.maximum(means_K, 0.5), np.inf)
    return _rank(~has & (probabilities >= usual_K), -probabilities)


def _rank(chosen_NK: Array, keys_NK: Array) -> Pairs:
    images_M, labels_M = np.nonzero(chosen_NK)
    order = np.argsort(keys_NK[images_M, labels_M], kind="stable")
    return Pairs(images_M[order], labels_M[order])


def describe_images(
    predictions: Predictions,
    classes: Sequence[str],
    thresholds: Sequence[float],
    pairs: Pairs,
) -> tuple[LabelSetImage, ...]:
    """Describe images with a label in question."""
    found = []
    for image, label in zip(pairs.images_M.tolist(), pairs.labels_M.tolist(), strict=True):
        row = predictions.probabilities_NK[image]
        found.append(
            LabelSetImage(
                path=str(predictions.table["path"].iloc[image]),
                position=int(predictions.positions[image]),
                label=classes[label],
                probability=float(row[label]),
                threshold=float(thresholds[label]),
                labels=_names(predictions.labels[image], classes),
                predicted=_names(predictions.predicted[image], classes),
                answers=_most_probable(row, classes, _NAMED_LABELS),
            )
        )
    return tuple(found)


def _names(row_K: Array, classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(classes[k] for k in np.flatnonzero(row_K).tolist())


EXPLANATIONS = "explanations"
"""Folder of the pages, beside the report."""
TITLES = {
    "surest_right": "Most confident correct prediction",
    "worst_wrong": "Most confident error",
}
"""What the pages explain, by their name without `.html`."""


class ChosenImage(FrozenModel):
    """A test image whose prediction is explained."""

    page: str
    """Name of the page, without `.html`."""
    path: str
    label: str
    """Its class; of a set of labels, the one that is explained."""
    row: int
    """Number of the image in the prepared store."""


def choose_images(table: pd.DataFrame, _classes: tuple[str, ...]) -> tuple[ChosenImage, ...]:
    """Return the right test image with the highest probability, and the wrong one."""
    test = table[table["split"] == "test"]
    right = test["label"] == test["predicted"]
    chosen = []
    for page, rows in zip(TITLES, (test[right], test[~right]), strict=True):
        if len(rows):
            surest = rows.sort_values("probability").iloc[-1]
            chosen.append(_make_chosen_image(page, surest, str(surest["label"])))
    return tuple(chosen)


def choose_labels(table: pd.DataFrame, labels: tuple[str, ...]) -> tuple[ChosenImage, ...]:
    """Return the test images of the most probable label that is right, and of one that is not."""
    predictions = Predictions.of_label_sets(table[table["split"] == "test"], labels)
    chosen = []
    pairs = true_positives(predictions), false_positives(predictions)
    for page, found in zip(TITLES, pairs, strict=True):
        if len(found.images_M):
            row = predictions.table.iloc[int(found.images_M[0])]
            chosen.append(_make_chosen_image(page, row, labels[int(found.labels_M[0])]))
    return tuple(chosen)


def _make_chosen_image(page: str, row: pd.Series[Any], label: str) -> ChosenImage:
    return ChosenImage(page=page, path=str(row["path"]), label=label, row=int(row["row"]))
