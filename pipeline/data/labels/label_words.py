"""What the labels of a task are called in sentences."""

from __future__ import annotations

from typing import NamedTuple

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task


class LabelWords(NamedTuple):
    """One of them, and several."""

    one: str
    several: str


def by_task(task: Task) -> LabelWords:
    """Return `class` where an image has one, and `label` where it has a set."""
    return LabelWords("label", "labels") if task == MULTI_LABEL else LabelWords("class", "classes")
