"""Findings about classes: imbalance, too few images or none, names that look wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, PIXELS, column_of, united
from patchline.pipeline.data.symmetry.mirror_answer import MirrorSymmetry
from patchline.pipeline.inspection.finding import Finding, finding_on_classes
from patchline.pipeline.labels.class_names import suspicions

_IMBALANCE = 10
_FEW_IMAGES = 10


def findings_on_classes(
    rows: pd.DataFrame,
    divided: pd.Series[bool],
    empty: Sequence[str],
    needed_splits: int,
    unreadable: pd.DataFrame | None = None,
) -> list[Finding]:
    """Return what is unusual about the classes.

    Args:
        rows: the usable images.
        divided: which of them the source leaves in no split or in train; they are divided.
        empty: classes without an image.
        needed_splits: number of splits that those of every class are divided into.
        unreadable: the files of classes of which no image can be read.
    """
    counts = {str(label): int(count) for label, count in rows["label"].value_counts().items()}
    damaged = rows[:0] if unreadable is None else unreadable
    small = _small(rows, divided, counts, needed_splits, damaged) if counts else []
    return [*small, *_imbalance(counts), *_empty(empty), *_suspicious(counts)]


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


def _suspicious(counts: Mapping[str, int]) -> list[Finding]:
    """Return what looks wrong about the names of the classes."""
    return [
        finding_on_classes(
            each.kind,
            "warning",
            each.classes,
            f"{each.sentence[0].upper()}{each.sentence[1:]}.",
            f"Trains on the classes as they are. {each.remedy}.",
        )
        for each in suspicions(counts)
    ]


def _small(
    rows: pd.DataFrame,
    divided: pd.Series[bool],
    of_usable: Mapping[str, int],
    needed_splits: int,
    unreadable: pd.DataFrame,
) -> list[Finding]:
    counts = {**of_usable, **dict.fromkeys(unreadable["label"], 0)}
    parts = rows[divided]
    units = pd.Series(
        united(column_of(parts, FILE), column_of(parts, PIXELS), column_of(parts, GROUP)),
        index=parts.index,
    )
    different = units.groupby(parts["label"]).nunique()
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
        f"Stops: every class needs {needed}. Add or repair images, or remove the class."
        if stopping
        else "Trains on them, but their metrics say little. Add images, or merge classes."
    )
    return [
        finding_on_classes(
            "small_class",
            "error" if stopping else "warning",
            small,
            f"{len(small):,} class{' has' if one else 'es have'} {few}: {named}.",
            action,
            files=files.loc[files["label"].isin(small), "path"],
        )
    ]


def _imbalance(counts: Mapping[str, int]) -> list[Finding]:
    if len(counts) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    largest = max(counts, key=lambda label: counts[label])
    rare = sorted(label for label in counts if counts[label] * _IMBALANCE <= counts[largest])
    if not rare:
        return []
    named = examples([f"{label} ({counts[label]:,})" for label in rare], 5)
    return [
        finding_on_classes(
            "imbalance",
            "warning",
            rare,
            f"{len(rare):,} class{' has' if len(rare) == 1 else 'es have'} at most a tenth "
            f"of the images of {largest} ({counts[largest]:,}): {named}.",
            "Trains on the classes as they are, so the model prefers the large ones. Judge "
            "it by balanced accuracy, and add images of the small classes, or train with "
            "--training.sampling balanced.",
        )
    ]


def _empty(empty: Sequence[str]) -> list[Finding]:
    if not empty:
        return []
    one = len(empty) == 1
    return [
        finding_on_classes(
            "empty_class",
            "warning",
            empty,
            f"{len(empty):,} class folder{' has' if one else 's have'} no image: "
            f"{examples(empty, 5)}.",
            "Trains without them, so the model never predicts them. Add images, or delete "
            "the folders.",
        )
    ]
