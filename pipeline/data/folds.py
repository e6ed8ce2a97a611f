"""Divide the training and validation images into folds for cross-validation.

Images that belong together (one group, the same pixels or the same file) form a unit that is never
divided. The units of each class are ordered by a number from the SHA-256 of the split seed and the
unit's key, and cut into parts with the same number of images. So each fold has its share of every
class, and the folds depend on neither the names nor the order of the files. Test images are in no
fold.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.same_images import FILE, GROUP, PIXELS, known, united
from pipeline.errors import DataError

Integers = np.ndarray[Any, np.dtype[np.int64]]

NO_FOLD = -1
_USED = ("train", "validation")


def folds_of(rows: pd.DataFrame, folds: int, seed: int) -> Integers:
    """Return the fold of each row, counted from 0; `NO_FOLD` for test images.

    Args:
        rows: the usable rows of a manifest with its splits.
        folds: number of folds, at least 2.
        seed: the split seed.

    Raises:
        DataError: if a class cannot be trained in every fold, or a fold would have no image.
    """
    used = rows["split"].isin(_USED).to_numpy()
    own = rows[used]
    units = united(known(own, FILE), known(own, PIXELS), known(own, GROUP))
    table = pd.DataFrame({"unit": units, "label": own["label"].to_numpy(object)})
    table["key"] = known(own, GROUP).where(known(own, GROUP) != "", known(own, FILE)).to_numpy()
    of_unit = _assigned(table, folds, seed)
    assigned = of_unit[units]
    _check(table["label"], assigned, folds)
    found = np.full(len(rows), NO_FOLD, np.int64)
    found[used] = assigned
    return found


def rows_of_fold(rows: pd.DataFrame, fold: int, folds: int, seed: int) -> tuple[Integers, Integers]:
    """Return the row numbers to train on, and those of the fold to validate on.

    Args:
        rows: the usable rows of a manifest with its splits.
        fold: counted from 1.
        folds: number of folds.
        seed: the split seed.
    """
    found = folds_of(rows, folds, seed)
    training = (found != fold - 1) & (found != NO_FOLD)
    return np.flatnonzero(training), np.flatnonzero(found == fold - 1)


def used_rows(rows: pd.DataFrame) -> Integers:
    """Return the row numbers of the training and validation images."""
    return np.flatnonzero(rows["split"].isin(_USED))


def _assigned(table: pd.DataFrame, folds: int, seed: int) -> Integers:
    """Return the fold of each unit; a unit of several classes counts for its most frequent one."""
    counts = table.groupby(["unit", "label"]).size().rename("images").reset_index()
    order = ["unit", "images", "label"]
    main = counts.sort_values(order, ascending=[True, False, True]).drop_duplicates("unit")
    keys = table.groupby("unit")["key"].min()
    images = table.groupby("unit").size()
    of_unit = np.zeros(len(images), np.int64)
    for label, units in main.groupby("label")["unit"]:
        numbers = {unit: _number(f"{seed}:{keys[unit]}") for unit in units}
        ordered = sorted(numbers, key=numbers.__getitem__)
        sizes = images[ordered].to_numpy(np.float64)
        middles = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
        # A class with fewer units than folds starts at a fold of its own.
        first = int(_number(f"{seed}:class:{label}") * folds)
        of_unit[ordered] = (np.floor(middles * folds).astype(np.int64) + first) % folds
    return of_unit


def _number(text: str) -> float:
    """Return a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(f"fold:{text}".encode()).digest()[:7]) / 2**56


def _check(labels: pd.Series[str], assigned: Integers, folds: int) -> None:
    table = pd.DataFrame({"label": labels, "fold": assigned}).drop_duplicates()
    counts = table.groupby("label").size().to_dict()
    alone = sorted(str(label) for label, count in counts.items() if count == 1)
    if alone:
        raise DataError(
            f"training.folds is {folds}, but all training and validation images of class "
            f"'{alone[0]}' are in the same fold, because they are too few, are copies of each "
            "other, or form one group. Add images to the class, or leave out training.folds."
        )
    missing = sorted(set(range(folds)) - set(assigned.tolist()))
    if missing:
        raise DataError(
            f"training.folds is {folds}, but only {folds - len(missing)} folds would have images, "
            "because too few images or groups remain outside the test split. Choose fewer folds."
        )
