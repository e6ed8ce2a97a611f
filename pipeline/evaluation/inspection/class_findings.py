"""Findings about classes and sets of labels: imbalance, missing or implied ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.ingestion_notes import FEW_POSITIVES, dominant_groups, few_negatives
from patchline.pipeline.data.labels.class_names import suspicions
from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    LabelPairs,
    LabelWords,
    Task,
    by_task,
    label_pairs,
)
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, PIXELS, column_of, unite
from patchline.pipeline.data.symmetry.assumed_symmetries import MirrorSymmetry
from patchline.pipeline.evaluation.inspection.findings import (
    Finding,
    finding_on_classes,
    finding_on_files,
)
from patchline.pipeline.terminal_words import by_number, counted, few_names

_IMBALANCE = 10
_FEW_IMAGES = 10


def findings_on_classes(
    rows: pd.DataFrame,
    divided: pd.Series[bool],
    empty: Sequence[str],
    needed_splits: int,
    unreadable: pd.DataFrame | None = None,
    task: Task = SINGLE_LABEL,
) -> list[Finding]:
    """Return what is unusual about the classes.

    Args:
        rows: the usable images.
        divided: whether the source leaves an image in no split or in train; such images are
            divided.
        empty: names of the classes without an image.
        needed_splits: number of splits that those of every class are divided into.
        unreadable: the files of classes of which no image can be read.
        task: whether an image has one class, or a set of labels. A label need not be in every
            split, but in training.
    """
    pairs = label_pairs(rows["label"], task)
    names = np.array(pairs.names, dtype=object)[pairs.labels]
    each, words = rows.iloc[pairs.images].assign(label=names), by_task(task)
    counts = {str(label): int(count) for label, count in each["label"].value_counts().items()}
    damaged = rows[:0] if unreadable is None else unreadable
    needed = needed_splits if task == SINGLE_LABEL else 1
    own = divided.iloc[pairs.images].to_numpy()
    small = _small(each, own, counts, needed, damaged, words) if counts else []
    return [
        *small,
        *_imbalance(counts, task),
        *_find_dominated(rows, task),
        *_empty(empty, task),
        *_suspicious(counts, words),
    ]


def finding_on_mirror_images(mirror: MirrorSymmetry, labels: Sequence[str]) -> list[Finding]:
    """Return whether mirror images were measured to show something else.

    Args:
        mirror: the measurement, or what contradicts it.
        labels: names of all classes, which are listed if none is clearer than the others.
    """
    measured = mirror.answer == "asymmetric" and mirror.origin == "measured"
    if not (measured or mirror.is_contradicted):
        return []
    action = (
        "Mirrors images as set, which hides differences between left and right."
        if mirror.is_contradicted
        else "Mirrors no image. Set data.mirror_symmetric if you know better."
    )
    return [
        finding_on_classes(
            "mirror_asymmetric",
            "warning" if mirror.is_contradicted else "note",
            mirror.classes or labels,
            f"{mirror.note[0].upper()}{mirror.note[1:]}.",
            action,
        )
    ]


def _suspicious(counts: Mapping[str, int], words: LabelWords) -> list[Finding]:
    """Return what looks wrong about the names of the classes."""
    return [
        finding_on_classes(
            each.kind,
            "warning",
            each.classes,
            f"{each.sentence[0].upper()}{each.sentence[1:]}.",
            f"Trains on the {words.several} as they are. {each.remedy}.",
        )
        for each in suspicions(counts)
    ]


def _small(
    rows: pd.DataFrame,
    divided: np.ndarray[Any, np.dtype[np.bool_]],
    of_usable: Mapping[str, int],
    needed_splits: int,
    unreadable: pd.DataFrame,
    words: LabelWords,
) -> list[Finding]:
    counts = {**of_usable, **dict.fromkeys(unreadable["label"], 0)}
    parts = rows[divided]
    units = unite(column_of(parts, FILE), column_of(parts, PIXELS), column_of(parts, GROUP))
    different = pd.Series(units).groupby(parts["label"].to_numpy()).nunique()
    stopping = [label for label in counts if different.get(label, 0) < needed_splits]
    small = sorted(label for label in counts if counts[label] < _FEW_IMAGES or label in stopping)
    if not small:
        return []
    named = few_names(f"{label} ({counts[label]})" for label in small)
    files = pd.concat([rows, unreadable])
    needed = "an image to train on"
    if needed_splits > 1:
        needed = f"{needed_splits} different images, one for each split that is split off"
    few = f"fewer than {_FEW_IMAGES} images"
    if any(counts[label] >= _FEW_IMAGES for label in small):  # copies, or all in another split
        few = "too few different images"
    action = (
        f"Stops: every {words.one} needs {needed}. Add or repair images, or remove the {words.one}."
        if stopping
        else f"Trains on them, but their metrics say little. Add images, or merge {words.several}."
    )
    return [
        finding_on_classes(
            "small_class",
            "error" if stopping else "warning",
            small,
            f"{counted(len(small), f'{words.one} has', f'{words.several} have')} {few}: {named}.",
            action,
            files=files.loc[files["label"].isin(small), "path"],
        )
    ]


def _imbalance(counts: Mapping[str, int], task: Task) -> list[Finding]:
    if len(counts) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    largest = max(counts, key=lambda label: counts[label])
    rare = sorted(label for label in counts if counts[label] * _IMBALANCE <= counts[largest])
    if not rare:
        return []
    named, words = few_names(f"{label} ({counts[label]:,})" for label in rare), by_task(task)
    action = (
        "Trains on the classes as they are, so the model prefers the large ones. Judge "
        "it by balanced accuracy, and add images of the small classes, or train with "
        "--training.class-balance sampling."
    )
    if task == MULTI_LABEL:
        action = (
            "Trains on the labels as they are. Judge the model by mAP, in which every label counts "
            "alike, and add images with the rare labels."
        )
    return [
        finding_on_classes(
            "imbalance",
            "warning",
            rare,
            f"{counted(len(rare), f'{words.one} has', f'{words.several} have')} at most a tenth of "
            f"the images of {largest} ({counts[largest]:,}): {named}.",
            action,
        )
    ]


def _find_dominated(rows: pd.DataFrame, task: Task) -> list[Finding]:
    words = by_task(task)
    return [
        finding_on_classes(
            "imbalance",
            "warning",
            group.classes,
            f"{group.sentence[0].upper()}{group.sentence[1:]}.",
            f"Keeps the group in one split. Add images of other groups to these {words.several}.",
        )
        for group in dominant_groups(rows, task)
    ]


def _empty(empty: Sequence[str], task: Task) -> list[Finding]:
    if not empty:
        return []
    if task == MULTI_LABEL:
        return [
            finding_on_classes(
                "empty_class",
                "warning",
                empty,
                f"{counted(len(empty), 'label is', 'labels are')} on no image: {few_names(empty)}.",
                "Trains without them, so the model never predicts them. Add images with them.",
            )
        ]
    return [
        finding_on_classes(
            "empty_class",
            "warning",
            empty,
            f"{counted(len(empty), 'class has', 'classes have')} no image: {few_names(empty)}.",
            "Trains without them, so the model never predicts them. Add images, or delete "
            "their folders or columns.",
        )
    ]


Integers = np.ndarray[Any, np.dtype[np.int64]]
_FEW_TOGETHER, _MANY_TOGETHER = 3, 15
"""Images with two labels: of 15 expected ones, chance leaves fewer than 3 once in 25,000."""


def findings_on_sets(rows: pd.DataFrame, pairs: LabelPairs) -> list[Finding]:
    """Return what is unusual about the labels of multi-label data, beside their numbers.

    Args:
        rows: the usable images.
        pairs: the labels of each image.
    """
    return [
        *_without_labels(rows, pairs),
        *_frequent(pairs, len(rows)),
        *_find_implied(pairs, len(rows)),
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


def _find_implied(pairs: LabelPairs, images: int) -> list[Finding]:
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
    named = few_names(f"{pairs.names[one]} (with {pairs.names[other]})" for one, other in ways)
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
    named = few_names(f"{names[a]} + {names[b]} ({count})" for count, a, b in met)
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
