"""What a person should know about sets of labels: how many an image has, and rare labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_pairs import LabelPairs
from patchline.pipeline.data.labels.label_sets import decoded
from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.terminal_words import by_number, counted

FEW_POSITIVES = 10
"""Images with a label, or without it, below which little can be learned or said about it."""
_NAMED = 5


class Rare(NamedTuple):
    """Labels that are too rare, or too frequent, and that in a sentence without its full stop."""

    names: list[str]
    sentence: str


def notes_on_sets(rows: pd.DataFrame, pairs: LabelPairs) -> list[str]:
    """Return the task, images without labels, and labels with few images, or on nearly all.

    That a set of frequent labels is rare is not said: of 6 labels, there are 64 sets.

    Args:
        rows: the usable images of multi-label data.
        pairs: which of them has which label.
    """
    count = len(rows)
    sizes = np.bincount(pairs.images, minlength=count)
    task = f"several labels for each image: {sizes.mean():.1f} on average, at most {sizes.max()}"
    rare = (
        few_positives(pairs, len(rows)),
        few_negatives(pairs, len(rows)),
    )
    return [task, *_without(sizes, rows["path"]), *(each.sentence for each in rare if each)]


def set_words(text: str) -> str:
    """Return a set of labels as a person reads it: `circle + red`."""
    return " + ".join(decoded(text)) or "no label"


def few_positives(pairs: LabelPairs, images: int) -> Rare | None:
    """Return the labels that are on few images; None if there are none.

    Args:
        pairs: which image has which label.
        images: the number of all images.
    """
    counts = pairs.counts()
    few = [name for name, count in counts.items() if count < min(FEW_POSITIVES, images)]
    if not few:
        return None
    few.sort(key=lambda name: (counts[name], name))
    named = examples([f"{name} ({counts[name]})" for name in few], _NAMED)
    return Rare(
        few,
        f"{counted(len(few), 'label')} {by_number(len(few), 'is', 'are')} on fewer than "
        f"{FEW_POSITIVES} images, so little can be learned or said about "
        f"{by_number(len(few), 'it', 'them')}: {named}",
    )


def few_negatives(pairs: LabelPairs, images: int) -> Rare | None:
    """Return the labels that are on nearly every image; None if there are none."""
    without = {name: images - count for name, count in pairs.counts().items()}
    few = sorted(name for name, count in without.items() if count < min(FEW_POSITIVES, images / 2))
    if not few:
        return None
    named = examples([f"{name} (not on {without[name]})" for name in few], _NAMED)
    return Rare(
        few,
        f"{counted(len(few), 'label')} {by_number(len(few), 'is', 'are')} on nearly every "
        f"image, so there is little to tell apart: {named}",
    )


def _without(sizes: np.ndarray[Any, np.dtype[np.int64]], paths: pd.Series[str]) -> list[str]:
    without = np.flatnonzero(sizes == 0)
    if not len(without):
        return []
    words = by_number(len(without), "image has no label", "images have no label")
    return [f"{len(without):,} {words}: {examples(paths.iloc[without])}"]
