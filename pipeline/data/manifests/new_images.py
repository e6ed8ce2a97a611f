"""Find new images in a folder by comparing two manifests by content.

A copy, a renamed file, a new date or another file format with the same pixels is not new.
"""

from __future__ import annotations

import pandas as pd

from patchline.pipeline.data.labels.label_pairs import label_pairs
from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task
from patchline.pipeline.data.labels.label_words import by_task
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.frozen_model import FrozenModel

_NAMED_FILES = 5


class NewImages(FrozenModel):
    """How the current images differ from an earlier manifest; each content is counted once."""

    first: bool
    """Whether there is no earlier manifest, so that everything is new."""
    images: int
    """Usable images."""
    new: int
    """Images that are not in the earlier manifest."""
    removed: int
    """Images of the earlier manifest that are gone."""
    relabelled: int
    """Images whose class, or set of classes, has changed."""
    new_by_class: dict[str, int]
    """New images by class, or with each label."""
    relabelled_examples: tuple[str, ...]
    """A few paths of images whose class has changed."""
    task: Task = SINGLE_LABEL

    def words(self) -> str:
        """Return the counts as text: `3 new images, 1 removed, 2 relabelled`."""
        parts = [f"{self.new} new image{'' if self.new == 1 else 's'}"]
        parts += [f"{self.removed} removed"] if self.removed else []
        parts += [f"{self.relabelled} relabelled"] if self.relabelled else []
        return ", ".join(parts)

    def markdown(self, name: str, verdict: str) -> str:
        """Return a report on these counts.

        Args:
            name: of the experiment.
            verdict: what follows from the counts, in a sentence.
        """
        if self.first:
            return f"## {name}\n\nThe first training: {self.images:,} images.\n"
        lines = [f"## {name}", "", f"**{self.words()}** since the last training. {verdict}", ""]
        if self.new_by_class:
            lines += [f"| {by_task(self.task).one} | new images |", "|---|---|"]
            lines += [f"| {label} | {count} |" for label, count in self.new_by_class.items()]
            lines.append("")
        if self.relabelled_examples:
            files = ", ".join(f"`{path}`" for path in self.relabelled_examples)
            lines += [f"Relabelled: {files}.", ""]
        lines.append(f"The folder holds {self.images} different images.")
        return "\n".join(lines) + "\n"


def count_new_images(before: pd.DataFrame | None, now: pd.DataFrame) -> NewImages:
    """Count the new, removed and relabelled images between two manifests.

    Args:
        before: the manifest of the last training run, or None.
        now: the manifest of the folder; only usable images count, in both.
    """
    (now, *others), task = manifests.in_one_form(*([now] if before is None else [now, before]))
    rows = manifests.usable(now)
    earlier = manifests.usable(others[0]) if others else rows.iloc[:0]
    numbers_before, numbers_now = content_numbers(earlier, rows)
    labels_before, labels_now = _labels(earlier, numbers_before), _labels(rows, numbers_now)
    new = labels_now.keys() - labels_before.keys()
    relabelled = {
        number
        for number in labels_now.keys() & labels_before.keys()
        if labels_now[number] != labels_before[number]
    }
    moved = rows.loc[numbers_now.isin(relabelled), "path"]
    is_new = numbers_now.isin(new)
    by_class = _by_class(rows[is_new], numbers_now[is_new], task)
    return NewImages(
        first=before is None,
        images=len(labels_now),
        new=len(new),
        removed=len(labels_before.keys() - labels_now.keys()),
        relabelled=len(relabelled),
        new_by_class=by_class,
        task=task,
        relabelled_examples=tuple(str(path) for path in moved[:_NAMED_FILES]),
    )


def _by_class(rows: pd.DataFrame, numbers: pd.Series[int], task: Task) -> dict[str, int]:
    """Return the number of contents of each class or label."""
    pairs = label_pairs(rows["label"], task)
    of_pairs = numbers.to_numpy()[pairs.images]
    counts = pd.Series(of_pairs).groupby(pairs.labels).nunique()
    return {pairs.names[int(label)]: int(count) for label, count in counts.items()}  # type: ignore[call-overload]


def _labels(rows: pd.DataFrame, numbers: pd.Series[int]) -> dict[int, frozenset[str]]:
    """Return the classes of each content, by its number."""
    labels = rows["label"].groupby(numbers).agg(frozenset)
    return {int(number): found for number, found in labels.items()}  # type: ignore[call-overload]
