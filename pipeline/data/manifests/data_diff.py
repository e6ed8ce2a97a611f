"""What changed between two manifests: added, removed, changed, moved and relabelled images.

For the number of new images, a copy, a renamed file, a new date or another file format with the
same pixels is not new.
"""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    Task,
    decode_labels,
    label_pairs,
)
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.frozen_model import FrozenModel


class Moved(FrozenModel):
    """An image whose file has another path; its content and its label are the same."""

    path: str
    before: str
    """The earlier path."""


class Relabelled(FrozenModel):
    """An image whose content is the same and whose label is another."""

    path: str
    before: str
    """The earlier path."""
    label: str
    """The class, or a set of labels as JSON."""
    label_before: str
    added_labels: tuple[str, ...] = ()
    """The labels of a set that only B has."""
    removed_labels: tuple[str, ...] = ()
    """The labels of a set that only A has."""


class DataDiff(FrozenModel):
    """How the usable images of a data set B differ from those of a data set A."""

    images_before: int
    images: int
    unchanged: int
    added: tuple[str, ...]
    """Paths that only B has; a further copy of an image counts too."""
    removed: tuple[str, ...]
    """Paths that only A has."""
    changed: tuple[str, ...]
    """Paths whose pixels differ."""
    moved: tuple[Moved, ...]
    relabelled: tuple[Relabelled, ...]
    task: Task = SINGLE_LABEL
    """Whether the labels were compared as sets, because A or B has sets."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.unchanged == self.images_before == self.images


def compare(before: pd.DataFrame, now: pd.DataFrame) -> DataDiff:
    """Compare two manifests by path and by content; the same pixels are the same content.

    An image at the same path is unchanged, relabelled or changed. An image at a new path was moved
    from a path that is gone if it has the same content, and else was added.
    """
    (before, now), task = manifests.in_one_form(before, now)
    earlier, later = manifests.usable(before), manifests.usable(now)
    numbers_before, numbers_now = content_numbers(earlier, later)
    old = _by_path(earlier, numbers_before)
    new = _by_path(later, numbers_now)
    gone: dict[int, list[str]] = defaultdict(list)
    for path, (number, _) in old.items():
        if path not in new:
            gone[number].append(path)
    added, changed, moved, relabelled = [], [], [], []
    unchanged = 0
    for path, (number, label) in new.items():
        source = path if path in old else next(iter(gone[number]), None)
        if source is None:
            added.append(path)
            continue
        if source != path:
            gone[number].remove(source)
        old_number, old_label = old[source]
        if old_number != number:
            changed.append(path)
        elif old_label != label:
            relabelled.append(_compare_labels(path, source, label, old_label, task))
        elif source != path:
            moved.append(Moved(path=path, before=source))
        else:
            unchanged += 1
    return DataDiff(
        images_before=len(earlier),
        images=len(later),
        unchanged=unchanged,
        added=tuple(added),
        removed=tuple(sorted(path for paths in gone.values() for path in paths)),
        changed=tuple(changed),
        moved=tuple(moved),
        relabelled=tuple(relabelled),
        task=task,
    )


def _compare_labels(
    path: str, before: str, label: str, label_before: str, task: Task
) -> Relabelled:
    are_sets = task == MULTI_LABEL
    new, old = (set(decode_labels(each)) if are_sets else set() for each in (label, label_before))
    return Relabelled(
        path=path,
        before=before,
        label=label,
        label_before=label_before,
        added_labels=tuple(sorted(new - old)),
        removed_labels=tuple(sorted(old - new)),
    )


def _by_path(rows: pd.DataFrame, numbers: pd.Series[int]) -> dict[str, tuple[int, str]]:
    """Return content and label by path."""
    values = zip(numbers.tolist(), rows["label"].tolist(), strict=True)
    return dict(zip(rows["path"].tolist(), values, strict=True))


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
