"""Check that there are images to train on, and classes to tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.exclusion import STATUS
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.class_names import identifiers, numbers

_FEWEST_EACH = 3
"""Images that a class needs where Patchline makes all splits."""
_FLAT = 2
"""Parts of the path of an image directly in its class folder."""


def check_images(manifest: pd.DataFrame, root: Path, *, labelled: bool) -> None:
    """Refuse a manifest without usable images, or with unusable or too few classes.

    Args:
        manifest: of all files, split or not.
        root: where they are.
        labelled: whether there have to be classes.

    Raises:
        DataError: naming the class and its first file.
    """
    if labelled:
        _check_classes(manifest, root)
    elif manifests.usable(manifest).empty:
        raise DataError(f"{root} has no readable image. Name a folder with images.")


def one_class(root: Path, labels: AbstractSet[str], paths: Iterable[str]) -> DataError:
    """Return the error for data with a single class.

    Args:
        root: what the paths are relative to.
        labels: the class.
        paths: its images; folders in the class folder may be what is meant by classes.
    """
    label = next(iter(labels))
    parts = [path.split("/") for path in paths]
    inner = sorted({part[1] for part in parts if len(part) > _FLAT and part[0] == label})
    hint = ""
    if len(inner) > 1 and root.is_dir():
        hint = (
            f" If the folders in it ({manifests.examples(inner)}) are classes, pass {root / label}."
        )
    return DataError(
        f"{root} has only one class, '{label}'. A classifier needs at least two folders of images, "
        f"one for each class, or two labels in a table.{hint}"
    )


def unreadable_classes(manifest: pd.DataFrame) -> pd.DataFrame:
    """Return the files of the classes of which no image can be read, by class."""
    left_out = manifest["status"].isin(["foreign", STATUS])
    labelled = manifest[(manifest["label"] != "") & ~left_out]
    readable = labelled.loc[labelled["status"] == "ok", "label"].unique()
    return labelled[~labelled["label"].isin(readable)].sort_values("label", kind="stable")


def _check_classes(manifest: pd.DataFrame, root: Path) -> None:
    unreadable = unreadable_classes(manifest)
    if len(unreadable):
        first = unreadable.iloc[0]
        raise DataError(
            f"Class '{first['label']}' has no readable image ({first['path']}: {first['reason']}). "
            "Repair its files, or remove the class."
        )
    usable = manifests.usable(manifest)
    readable = set(usable["label"].unique())
    if len(readable) == 1:
        raise one_class(root, readable, usable["path"])
    counts = {str(label): int(n) for label, n in usable["label"].value_counts().items()}
    wrong = numbers(counts) or identifiers(counts)
    if wrong and len(usable) < _FEWEST_EACH * len(counts):
        raise DataError(
            f"The labels of {root} cannot be used as classes: {wrong.sentence}. {wrong.remedy}."
        )
    if not readable and (manifest["status"] == STATUS).any():
        raise DataError(f"{root} has no image left: all are excluded. Edit data.exclude.")
