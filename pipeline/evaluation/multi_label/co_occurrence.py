"""Which labels are predicted in place of others, and which appear together.

Shapes: N images, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
_MOST_PAIRS = 20


class ConfusedLabels(FrozenModel):
    """A label that is missed on images for which another one is wrongly predicted."""

    missed: str
    """A label of the images that is not predicted."""
    predicted: str
    """A label that is predicted instead, which they do not have."""
    images: int
    """Number of images with both errors."""
    of: int
    """Number of images with the missed label but without the other one."""


class LabelPair(FrozenModel):
    """Two labels that images have together, or are predicted to have."""

    first: str
    second: str
    images: int
    """Number of images that have both."""
    predicted: int
    """Number of images for which both are predicted."""


def confused_labels(
    labels_NK: Array, predicted_NK: Array, classes: Sequence[str]
) -> tuple[ConfusedLabels, ...]:
    """Return the pairs of a missed label and one predicted in its place, most images first."""
    has, said = labels_NK.astype(np.float32), predicted_NK.astype(np.float32)
    images_KK = (has * (1 - said)).T @ ((1 - has) * said)
    without_KK = has.T @ (1 - has)
    order = np.argsort(-images_KK, axis=None, kind="stable")[:_MOST_PAIRS]
    rows, columns = np.unravel_index(order, images_KK.shape)
    return tuple(
        ConfusedLabels(
            missed=classes[row],
            predicted=classes[column],
            images=int(images_KK[row, column]),
            of=int(without_KK[row, column]),
        )
        for row, column in zip(rows, columns, strict=True)
        if images_KK[row, column]
    )


def label_pairs(
    labels_NK: Array, predicted_NK: Array, classes: Sequence[str]
) -> tuple[LabelPair, ...]:
    """Return the pairs of labels whose number of images differs most from the predicted number."""
    has, said = labels_NK.astype(np.float32), predicted_NK.astype(np.float32)
    images_KK, predicted_KK = has.T @ has, said.T @ said
    rows, columns = np.triu_indices(len(classes), 1)
    gaps = np.abs(images_KK - predicted_KK)[rows, columns]
    order = np.argsort(-gaps, kind="stable")[:_MOST_PAIRS]
    return tuple(
        LabelPair(
            first=classes[row],
            second=classes[column],
            images=int(images_KK[row, column]),
            predicted=int(predicted_KK[row, column]),
        )
        for row, column in zip(rows[order], columns[order], strict=True)
        if images_KK[row, column] or predicted_KK[row, column]
    )
