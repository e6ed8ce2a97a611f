"""Findings about sets of labels: images without any, labels that imply or avoid each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_pairs import LabelPairs
from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.data.set_notes import FEW_POSITIVES, few_negatives
from patchline.pipeline.evaluation.inspection.finding import (
    Finding,
    finding_on_classes,
    finding_on_files,
)
from patchline.pipeline.terminal_words import by_number, counted

Integers = np.ndarray[Any, np.dtype[np.int64]]
_NAMED = 5
_FEW_TOGETHER, _MANY_TOGETHER = 3, 15
"""Images with two labels: of 15 expected ones, chance leaves fewer than 3 once in 25,000."""


def findings_on_sets(rows: pd.DataFrame, pairs: LabelPairs) -> list[Finding]:
    """Return what is unusual about the labels of multi-label data, beside their numbers.

    Args:
        rows: the usable images.
        pairs: which of them has which label.
    """
    return [
        *_without_labels(rows, pairs),
        *_frequent(pairs, len(rows)),
        *_implied(pairs, len(rows)),
        *_rare(rows, pairs),
    ]


def co_occurrence(pairs: LabelPairs, images: int) -> dict[str, dict[str, int]]:
    """Return the number of images with two labels, for each label and each other one it meets."""
    counts = _together(pairs, images)
    names = pairs.names
    found: dict[str, dict[str, int]] = {name: {} for name in names}
    first, second = counts.nonzero()
    values = np.asarray(counts[first, second]).ravel()
    for row, column, value in zip(first.tolist(), second.tolist(), values.tolist(), strict=True):
        if row != column:
            found[names[row]][names[column]] = int(value)
    return found


def _together(pairs: LabelPairs, images: int) -> Any:
    """Return a sparse matrix (K, K) of the images with each two labels."""
    from scipy.sparse import csr_matrix

    ones = np.ones(len(pairs.images), np.int64)
    has = csr_matrix((ones, (pairs.images, pairs.labels)), shape=(images, len(pairs.names)))
    return (has.T @ has).tocsr()


def _without_labels(rows: pd.DataFrame, pairs: LabelPairs) -> list[Finding]:
    without = np.ones(len(rows), np.bool_)
    without[pairs.images] = False
    if not without.any():
        return []
    count = int(without.sum())
    return [
        finding_on_files(
            "no_label",
            "note",
            rows.loc[without, "path"].tolist(),
            f"{count:,} of {counted(len(rows), 'image')} ({count / len(rows):.0%}) "
            f"{by_number(count, 'has', 'have')} no label.",
            "Trains on them as images that show none of the labels. Add the labels that are "
            "missing, or exclude them.",
        )
    ]


def _frequent(pairs: LabelPairs, images: int) -> list[Finding]:
    frequent = few_negatives(pairs, images)
    if frequent is None:
        return []
    return [
        finding_on_classes(
            "frequent_label",
            "warning",
            frequent.names,
            f"{frequent.sentence}.",
            "Trains on them, but their metrics say little. Add images without them.",
        )
    ]


def _implied(pairs: LabelPairs, images: int) -> list[Finding]:
    """Return labels that never occur without some other label that is not on nearly every image."""
    together = _together(pairs, images)
    counts = together.diagonal()
    first, second = together.nonzero()
    always = np.asarray(together[first, second]).ravel() == counts[first]
    usual = counts[second] <= images / 2
    there = always & (first != second) & usual & (counts[first] >= FEW_POSITIVES)
    implied = sorted({pairs.names[label] for label in first[there].tolist()})
    if not implied:
        return []
    ways = zip(first[there].tolist(), second[there].tolist(), strict=True)
    named = examples([f"{pairs.names[one]} (with {pairs.names[other]})" for one, other in ways], 5)
    return [
        finding_on_classes(
            "implied_label",
            "note",
            implied,
            f"{counted(len(implied), 'label')} never {by_number(len(implied), 'occurs', 'occur')} "
            f"without another one: {named}.",
            "Trains on them as they are. That is right where one label implies the other; else "
            "labels are missing, or two labels are the same.",
        )
    ]


def _rare(rows: pd.DataFrame, pairs: LabelPairs) -> list[Finding]:
    """Return images with two labels that hardly ever meet, although chance would let them.

    A set of several frequent labels may well be rare. Labels that avoid each other, such as indoor
    and outdoor, are another matter: where they do meet, one of them may be wrong.
    """
    together = _together(pairs, len(rows)).tocoo()
    one, other, both = together.row, together.col, together.data
    counts = np.bincount(pairs.labels, minlength=len(pairs.names))
    by_chance = counts[one] * counts[other] / max(1, len(rows))
    rare = (one < other) & (both < _FEW_TOGETHER) & (by_chance >= _MANY_TOGETHER)
    if not rare.any():
        return []
    names = pairs.names
    met = sorted(zip(both[rare].tolist(), one[rare].tolist(), other[rare].tolist(), strict=True))
    images = [
        set(pairs.images_of(names[a]).tolist()) & set(pairs.images_of(names[b]).tolist())
        for _, a, b in met
    ]
    named = examples([f"{names[a]} + {names[b]} ({count})" for count, a, b in met], _NAMED)
    are = by_number(len(met), "is", "are")
    return [
        finding_on_files(
            "rare_label_set",
            "note",
            rows["path"].iloc[sorted(set().union(*images))].tolist(),
            f"{counted(len(met), 'pair')} of labels {are} on fewer than {_FEW_TOGETHER} images, "
            f"and by chance would be on at least {_MANY_TOGETHER}: {named}.",
            "Trains on them. Labels that otherwise exclude each other may be a mistake.",
        )
    ]
