"""Give each class an image in each split, and say why where that is impossible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task, by_task
from patchline.pipeline.data.splits.class_coverage import Parts, spread
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import counted, few_names

Array = np.ndarray[Any, Any]

SPLITS = ("train", "validation", "test")
_TRAIN = SPLITS.index("train")

Cause = Literal["memory", "groups", "too few"]


class Gap(NamedTuple):
    """A class without an image in a split."""

    label: int
    split: int
    cause: Cause
    """Earlier assignments, groups of several classes, or that a label has fewer images, copies and
    groups counted once, than there are splits."""


def fill_gaps(pairs: Parts, codes: Array, numbers: Array, needed: Sequence[int]) -> list[Gap]:
    """Move new units so that each class has one in each split, as far as possible.

    Args:
        pairs: which class has images in which unit.
        codes: the split of each unit, changed in place.
        numbers: of the units; the lowest moves first.
        needed: splits for each class, training last.

    Returns:
        What is left.
    """
    counts = spread(pairs, codes, numbers, needed, train=_TRAIN)
    is_shared = (np.bincount(pairs.units) > 1)[pairs.units]
    gaps = []
    for label, place in np.argwhere(counts[:, list(needed)] == 0).tolist():
        own = pairs.labels == label
        cause: Cause = "groups" if is_shared[own].any() else "memory"
        if own.sum() < len(needed):
            cause = "too few"
        gaps.append(Gap(label, needed[place], cause))
    return gaps


def too_few(label: str, images: int, units: int, needed: Sequence[int]) -> DataError:
    """Return the error for a class that has fewer units than there are splits."""
    usable = counted(images, "usable image")
    together = f" ({units} if copies and groups count once)" if units < images else ""
    joined = ", remove copies that link its groups" if together else ""
    splits = ", ".join(SPLITS[split] for split in reversed(needed))
    what = f"Class '{label}'" if label else "The data"
    remedy = f"Add images to the class{joined}, or remove the class" if label else "Add images"
    return DataError(
        f"{what} has {usable}{together}, but each of the {len(needed)} splits ({splits}) needs "
        f"at least one. {remedy}."
    )


_TOGETHER = (
    "because images of one group stay in one split, as copies of an image do, and no assignment"
)
_REASONS: dict[Cause, tuple[str, str]] = {
    "memory": (
        "because images never change their split",
        "add some to {names}, or choose another data.split_seed",
    ),
    "groups": (
        f"{_TOGETHER} of the new images was found that puts every class into every split",
        "add images of other groups to {names}, or choose another data.split_seed",
    ),
    "too few": (
        "because they are on too few different images to be in every split",
        "nothing can be said about them there; add images of {names}",
    ),
}


def notes_on_gaps(
    gaps: Sequence[Gap], names: Sequence[str], task: Task = SINGLE_LABEL
) -> list[str]:
    """Return a sentence for each split and cause, with the remedy.

    Args:
        gaps: those of held-back splits.
        names: of the classes.
        task: whether they are classes, or labels of sets.
    """
    notes, words = [], by_task(task)
    for split in (SPLITS.index("test"), SPLITS.index("validation")):
        for cause, (reason, remedy) in _REASONS.items():
            labels = [names[gap.label] for gap in gaps if (gap.split, gap.cause) == (split, cause)]
            if labels:
                classes = counted(len(labels), words.one, words.several)
                action = remedy.format(names=few_names(sorted(labels), 3))
                notes.append(f"{classes} without {SPLITS[split]} images, {reason}; {action}")
    return notes
