"""Divide the training and validation images into folds for cross-validation.

Images that belong together (one group, the same pixels or the same file) form a unit that is never
divided. The units of each class are ordered by a number from the SHA-256 of the split seed and the
unit's key, and cut into parts with the same number of images. So each fold has its share of every
class, and the folds depend on neither the names nor the order of the files. Where units hold
several classes, some move if a class would otherwise be in fewer folds than it could be. Images
with sets of labels are stratified iteratively instead (`stratification`). Test images are in no
fold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    LabelWords,
    Task,
    by_task,
    label_pairs,
)
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, column_of, units_of
from patchline.pipeline.data.splits.class_coverage import NEW, Parts, spread
from patchline.pipeline.data.splits.stratification import Stratum, chance_of, stratify
from patchline.pipeline.errors import DataError

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

NO_FOLD = -1
_USED = ("train", "validation")


def folds_of(rows: pd.DataFrame, folds: int, seed: int, task: Task | None = None) -> Integers:
    """Return the fold of each row, counted from 0; `NO_FOLD` for test images.

    Args:
        rows: the usable rows of a manifest with its splits.
        folds: number of folds, at least 2.
        seed: the split seed.
        task: whether an image has one class, or a set of labels; None for what is said by a
            manifest that was saved.

    Raises:
        DataError: if a class cannot be trained in every fold, or a fold would have no image.
    """
    used = rows["split"].isin(_USED).to_numpy()
    own = rows[used]
    units = units_of(own)
    task = task or manifests.task_of(rows)
    pairs = label_pairs(own["label"], task)
    keys = column_of(own, GROUP).where(column_of(own, GROUP) != "", column_of(own, FILE))
    first = pd.Series(keys.to_numpy(object)).groupby(units).min()
    numbers = np.array([chance_of(f"fold:{seed}:{key}") for key in first])
    names = np.array(pairs.names, dtype=object)[pairs.labels]
    table = pd.DataFrame({"unit": units[pairs.images], "label": names})
    table["number"] = numbers[table["unit"]]
    if task == MULTI_LABEL:
        stratum = Stratum(units, pairs, np.full(len(own), NEW), numbers)
        of_unit = stratify(stratum, [1 / folds] * folds)
    else:
        of_unit = _assign_folds(table, folds, seed)
    pairs_of_units = table.drop_duplicates(["label", "unit"]).sort_values("label", kind="stable")
    codes, held = pd.factorize(pairs_of_units["label"])[0], pairs_of_units["unit"].to_numpy()
    spread(Parts(codes, held, np.full(len(held), NEW)), of_unit, numbers, range(folds))
    assigned = of_unit[units]
    _check(table, of_unit, folds, by_task(task))
    folds_N = np.full(len(rows), NO_FOLD, np.int64)
    folds_N[used] = assigned
    return folds_N


def rows_of_fold(rows: pd.DataFrame, fold: int, folds: int, seed: int) -> tuple[Integers, Integers]:
    """Return the row numbers to train on, and those of the fold to validate on.

    Args:
        rows: the usable rows of a manifest with its splits.
        fold: the number of the fold, from 1.
        folds: number of folds.
        seed: the split seed.
    """
    fold_numbers = folds_of(rows, folds, seed)
    training = (fold_numbers != fold - 1) & (fold_numbers != NO_FOLD)
    return np.flatnonzero(training), np.flatnonzero(fold_numbers == fold - 1)


def find_used_rows(rows: pd.DataFrame) -> Integers:
    """Return the row numbers of the training and validation images."""
    return np.flatnonzero(rows["split"].isin(_USED))


def _assign_folds(table: pd.DataFrame, folds: int, seed: int) -> Integers:
    """Return the fold of each unit; a unit of several classes counts for its most frequent one."""
    counts = table.groupby(["unit", "label"]).size().rename("images").reset_index()
    order = ["unit", "images", "label"]
    main = counts.sort_values(order, ascending=[True, False, True]).drop_duplicates("unit")
    number_of = table.groupby("unit")["number"].first()
    images = table.groupby("unit").size()
    of_unit = np.zeros(len(images), np.int64)
    for label, units in main.groupby("label")["unit"]:
        ordered = sorted(units, key=number_of.__getitem__)
        sizes = images[ordered].to_numpy(np.float64)
        middles = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
        # A class with fewer units than folds starts at a fold of its own.
        first = int(chance_of(f"fold:{seed}:class:{label}") * folds)
        of_unit[ordered] = (np.floor(middles * folds).astype(np.int64) + first) % folds
    return of_unit


def _check(table: pd.DataFrame, of_unit: Integers, folds: int, words: LabelWords) -> None:
    word, several = words
    own = table.assign(fold=of_unit[table["unit"]]).groupby("label")[["fold", "unit"]].nunique()
    for label, units in own.loc[own["fold"] == 1, "unit"].items():
        reason, remedy = (
            "they are too few, are copies of each other, or form one group",
            f"Add images to the {word}",
        )
        if units > 1:
            reason = (
                f"their groups also hold other {several}, and no assignment of the groups was "
                f"found that spreads every {word}"
            )
            remedy = f"Add images of other groups to the {word}"
        raise DataError(
            f"training.folds is {folds}, but all training and validation images of {word} "
            f"'{label}' are in the same fold, because {reason}. {remedy}, or leave out "
            "training.folds."
        )
    missing = sorted(set(range(folds)) - set(of_unit.tolist()))
    if missing:
        raise DataError(
            f"training.folds is {folds}, but only {folds - len(missing)} folds would have images, "
            "because too few images or groups remain outside the test split. Choose fewer folds."
        )
