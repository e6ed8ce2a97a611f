"""What changed between two manifests: added, removed, changed, moved and relabelled images."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task, decoded
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
    """Of a set: labels that only B has."""
    removed_labels: tuple[str, ...] = ()
    """Of a set: labels that only A has."""


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
            relabelled.append(_relabelled(path, source, label, old_label, task))
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


def _relabelled(path: str, before: str, label: str, label_before: str, task: Task) -> Relabelled:
    change = Relabelled(path=path, before=before, label=label, label_before=label_before)
    if task == SINGLE_LABEL:
        return change
    new, old = set(decoded(label)), set(decoded(label_before))
    return change.model_copy(
        update={
            "added_labels": tuple(sorted(new - old)),
            "removed_labels": tuple(sorted(old - new)),
        }
    )


def _by_path(rows: pd.DataFrame, numbers: pd.Series[int]) -> dict[str, tuple[int, str]]:
    """Return content and label by path."""
    values = zip(numbers.tolist(), rows["label"].tolist(), strict=True)
    return dict(zip(rows["path"].tolist(), values, strict=True))
