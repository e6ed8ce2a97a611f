"""Findings about classes: imbalance, too few images or none, names that look wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.ingestion_notes import dominant_groups
from patchline.pipeline.data.labels.class_names import suspicions
from patchline.pipeline.data.labels.label_pairs import label_pairs
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.labels.label_words import LabelWords, by_task
from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, PIXELS, column_of, united
from patchline.pipeline.data.symmetry.mirror_answer import MirrorSymmetry
from patchline.pipeline.evaluation.inspection.finding import Finding, finding_on_classes

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
        divided: which of them the source leaves in no split or in train; they are divided.
        empty: classes without an image.
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
        *_dominated(rows, task),
        *_empty(empty, task),
        *_suspicious(counts, words),
    ]


def finding_on_mirror_images(mirror: MirrorSymmetry, labels: Sequence[str]) -> list[Finding]:
    """Return whether mirror images were measured to show something else.

    Args:
        mirror: the measurement, or what contradicts it.
        labels: of all classes, in case none is clearer than the others.
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
    units = united(column_of(parts, FILE), column_of(parts, PIXELS), column_of(parts, GROUP))
    different = pd.Series(units).groupby(parts["label"].to_numpy()).nunique()
    stopping = [label for label in counts if different.get(label, 0) < needed_splits]
    small = sorted(label for label in counts if counts[label] < _FEW_IMAGES or label in stopping)
    if not small:
        return []
    named = examples([f"{label} ({counts[label]})" for label in small], 5)
    one = len(small) == 1
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
            f"{len(small):,} {words.one if one else words.several} {'has' if one else 'have'} "
            f"{few}: {named}.",
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
    named, words = examples([f"{label} ({counts[label]:,})" for label in rare], 5), by_task(task)
    have = f"{words.one} has" if len(rare) == 1 else f"{words.several} have"
    action = (
        "Trains on the classes as they are, so the model prefers the large ones. Judge "
        "it by balanced accuracy, and add images of the small classes, or train with "
        "--training.sampling balanced."
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
            f"{len(rare):,} {have} at most a tenth of the images of {largest} "
            f"({counts[largest]:,}): {named}.",
            action,
        )
    ]


def _dominated(rows: pd.DataFrame, task: Task) -> list[Finding]:
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
    one = len(empty) == 1
    if task == MULTI_LABEL:
        return [
            finding_on_classes(
                "empty_class",
                "warning",
                empty,
                f"{len(empty):,} label{' is' if one else 's are'} on no image: "
                f"{examples(empty, 5)}.",
                "Trains without them, so the model never predicts them. Add images with them.",
            )
        ]
    return [
        finding_on_classes(
            "empty_class",
            "warning",
            empty,
            f"{len(empty):,} class{' has' if one else 'es have'} no image: {examples(empty, 5)}.",
            "Trains without them, so the model never predicts them. Add images, or delete "
            "their folders or columns.",
        )
    ]
