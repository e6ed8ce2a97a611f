"""Check that there are images to train on, and classes to tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.class_names import identifiers, numbers
from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    Task,
    by_task,
    label_pairs,
)
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.left_out import STATUS
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import few_names

_FEWEST_EACH = 3
"""Images that a class needs where Patchline makes all splits."""
_FLAT = 2
"""Parts of the path of an image directly in its class folder."""


def check_images(
    manifest: pd.DataFrame, root: Path, *, labelled: bool, task: Task = SINGLE_LABEL
) -> None:
    """Refuse a manifest without usable images, or with unusable or too few classes.

    Args:
        manifest: the manifest of all files, split or not.
        root: the folder or archive that holds the files.
        labelled: whether there have to be classes.
        task: whether an image has one class, or a set of labels.

    Raises:
        DataError: naming the class and its first file.
    """
    if labelled:
        _check_classes(manifest, root, task)
    elif manifests.usable(manifest).empty:
        raise DataError(f"{root} has no readable image. Name a folder with images.")


def one_class(root: Path, labels: AbstractSet[str], paths: Iterable[str]) -> DataError:
    """Return the error for data with a single class.

    Args:
        root: the folder or archive that the paths are relative to.
        labels: the class.
        paths: its images; folders in the class folder may be what is meant by classes.
    """
    label = next(iter(labels))
    parts = [path.split("/") for path in paths]
    inner = sorted({part[1] for part in parts if len(part) > _FLAT and part[0] == label})
    hint = ""
    if len(inner) > 1 and root.is_dir():
        hint = f" If the folders in it ({few_names(inner, 3)}) are classes, pass {root / label}."
    return DataError(
        f"{root} has only one class, '{label}'. A classifier needs at least two folders of images, "
        f"one for each class, or two labels in a table.{hint}"
    )


def no_labels(root: Path) -> DataError:
    """Return the error for multi-label data in which no image has a label."""
    return DataError(
        f"No image of {root} has a label, so there is nothing to learn. Check the table of the "
        "labels, or train without labels with --objective.name mae."
    )


def unreadable_classes(manifest: pd.DataFrame, task: Task = SINGLE_LABEL) -> pd.DataFrame:
    """Return the files of the classes of which no image can be read, by class.

    A file of several such labels has a row for each; the column `label` holds one name.
    """
    left_out = manifest["status"].isin(["foreign", STATUS])
    labelled = manifest[(manifest["label"] != "") & ~left_out]
    pairs = label_pairs(labelled["label"], task)
    names = np.array(pairs.names, dtype=object)[pairs.labels]
    each = labelled.iloc[pairs.images].assign(label=names)
    readable = each.loc[each["status"] == "ok", "label"].unique()
    return each[~each["label"].isin(readable)].sort_values("label", kind="stable")


def _check_classes(manifest: pd.DataFrame, root: Path, task: Task) -> None:
    unreadable, word = unreadable_classes(manifest, task), by_task(task).one
    if len(unreadable):
        first = unreadable.iloc[0]
        raise DataError(
            f"{word.capitalize()} '{first['label']}' has no readable image ({first['path']}: "
            f"{first['reason']}). Repair its files, or remove the {word}."
        )
    usable = manifests.usable(manifest)
    pairs = label_pairs(usable["label"], task)
    counts = pairs.counts()
    if task == SINGLE_LABEL and len(counts) == 1:
        raise one_class(root, counts.keys(), usable["path"])
    if task == MULTI_LABEL and len(usable) and not counts:
        raise no_labels(root)
    if task == MULTI_LABEL and list(counts.values()) == [len(usable)]:
        raise DataError(
            f"Every image of {root} has the label '{pairs.names[0]}', and there is no other, so "
            "there is nothing to tell apart. Add images without it, or another label."
        )
    wrong = numbers(counts) or identifiers(counts)
    if wrong and sum(counts.values()) < _FEWEST_EACH * len(counts):
        raise DataError(
            f"The labels of {root} cannot be used as {by_task(task).several}: {wrong.sentence}. "
            f"{wrong.remedy}."
        )
    if not len(usable) and (manifest["status"] == STATUS).any():
        raise DataError(f"{root} has no image left: all are excluded. Edit data.exclude.")
