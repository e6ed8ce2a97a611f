"""Folds, and groups of several classes: all that can be divided is, and what is left is said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    Task,
    encode_labels,
    matrix,
)
from patchline.pipeline.data.splits.folds import NO_FOLD, folds_of, rows_of_fold
from patchline.pipeline.errors import DataError
from tests.pipeline.data.splits.made_tables import assigned, labels_of, random_sets, table


def _rows(
    labels: Sequence[str], *, test: int = 0, groups: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return usable rows, the first `test` of them test images, every seventh for validation."""
    splits = ["validation" if number % 7 == 0 else "train" for number in range(len(labels))]
    return table(labels, split=["test"] * test + splits[test:], group=groups)


@settings(max_examples=12)
@given(images=st.integers(5, 40), folds=st.integers(2, 5), seed=st.integers(0, 1000))
def test_every_fold_has_its_share_of_every_class(images: int, folds: int, seed: int) -> None:
    """Single images: the counts of a class differ by at most one between folds."""
    rows = _rows(labels_of(3, images))
    found = pd.crosstab(rows["label"], folds_of(rows, folds, seed))
    assert (found.max(axis=1) - found.min(axis=1) <= 1).all()


def test_training_and_validation_rows_of_a_fold_complete_each_other() -> None:
    """Each image that is not for testing is validated in one fold and trained on in the others."""
    rows = _rows(labels_of(2, 30), test=9)
    validated: list[int] = []
    for fold in range(1, 6):
        training, validation = rows_of_fold(rows, fold, 5, seed=0)
        assert sorted([*training, *validation]) == list(range(9, 60))
        validated += validation.tolist()
    assert sorted(validated) == list(range(9, 60))
    assert (folds_of(rows, 5, 0)[:9] == NO_FOLD).all()


@pytest.mark.parametrize("task", [SINGLE_LABEL, MULTI_LABEL])
def test_folds_depend_on_the_content_and_the_seed_alone(task: Task) -> None:
    """Renamed and reordered files stay in their folds; another seed gives other folds."""
    rows = _rows(labels_of(3, 20) if task == SINGLE_LABEL else random_sets(60))
    shuffled = rows.sample(frac=1, random_state=3, ignore_index=True)
    shuffled["path"] = [f"new/{number}" for number in range(len(rows))]
    before, after, other = (
        dict(zip(each["sha256"], folds_of(each, 4, seed, task), strict=True))
        for each, seed in ((rows, 0), (shuffled, 0), (rows, 1))
    )
    assert before == after
    assert before != other


@pytest.mark.parametrize("task", [SINGLE_LABEL, MULTI_LABEL])
def test_a_group_and_copies_of_an_image_stay_together(task: Task) -> None:
    """No group, and no file that exists twice, is on both sides of a fold."""
    labels = labels_of(2, 40) if task == SINGLE_LABEL else random_sets(80)
    rows = _rows(labels, groups=[f"patient {number // 4}" for number in range(80)])
    rows.loc[[0, 70], "sha256"] = "0" * 64  # joins two groups of different classes
    rows["fold"] = folds_of(rows, 5, 0, task)
    for key in ("group", "sha256"):
        assert set(rows.groupby(key)["fold"].nunique()) == {1}
    assert set(rows["fold"]) == set(range(5))


def test_what_cannot_be_divided_is_an_error_with_its_reason() -> None:
    """A class of one group, a label of one image, and fewer images than folds."""
    lone = _rows(labels_of(2, 6), groups=["one"] * 6 + [""] * 6)
    once = _rows(
        [encode_labels("a"), encode_labels("b"), encode_labels("ab")] * 6
        + [encode_labels(["once"])]
    )
    few = _rows(labels_of(2, 3))
    for rows, folds, task, words in (
        (lone, 3, SINGLE_LABEL, "of class 'class 0' are in the same fold"),
        (once, 3, MULTI_LABEL, "of label 'once' are in the same fold"),
        (few, 20, SINGLE_LABEL, r"only \d+ folds would have images"),
    ):
        with pytest.raises(DataError, match=words):
            folds_of(rows, folds, 0, task)


def test_every_fold_has_its_share_of_every_label_of_sets() -> None:
    """The counts of a label differ little between folds, and none has far more images."""
    rows = _rows(random_sets(150), test=20)
    folds = folds_of(rows, 5, 0, MULTI_LABEL)
    labels = matrix(rows["label"].tolist(), [f"l{number}" for number in range(6)])
    counts = np.array([labels[folds == fold].sum(axis=0) for fold in range(5)])
    assert (np.ptp(counts, axis=0) <= 3).all()
    assert np.ptp(np.bincount(folds[20:], minlength=5)) <= 4


Classes = list[list[int]]
"""For each class, the units that hold it."""


def _random_classes(random_: random.Random) -> tuple[int, Classes]:
    """Return a number of units, and classes of three or four of them, so that many conflict."""
    units = random_.randint(3, 6)
    classes = [
        sorted(random_.sample(range(units), random_.randint(3, min(units, 4))))
        for _ in range(random_.randint(1, 6))
    ]
    return units, classes


def _possible(units: int, classes: Classes) -> bool:
    """Return by brute force whether every class can be in every split."""
    return any(
        all(len({part_of[unit] for unit in members}) == 3 for members in classes)
        for part_of in product(range(3), repeat=units)
    )


def _manifest(classes: Classes, by: str = "group") -> pd.DataFrame:
    """Return a manifest with an image for each class of each unit: a group, or copies."""
    pairs = [(f"class {k}", unit) for k, members in enumerate(classes) for unit in members]
    columns: dict[str, Any] = {by: [f"unit {unit}" for _, unit in pairs]}
    columns["contents"] = [f"{label}/{unit}" for label, unit in pairs]
    return table([label for label, _ in pairs], **columns).assign(unit=[unit for _, unit in pairs])


def _whole(manifest: pd.DataFrame) -> bool:
    """Return whether each class is in each split."""
    return bool((manifest.groupby("label")["split"].nunique() == 3).all())


def test_splits_of_entangled_groups_are_nearly_always_whole() -> None:
    """Brute force divides hardly more; what is left is said."""
    random_ = random.Random(1)  # noqa: S311 - no secret
    possible = divided = 0
    for case in range(16):
        by = ("group", "pixels")[case % 2]
        units, classes = _random_classes(random_)
        before, notes = assigned(_manifest(classes, by), case)
        assert set(before.groupby("unit")["split"].nunique()) == {1}
        possible += _possible(units, classes)
        divided += _whole(before)
        assert _whole(before) or "no assignment of the new images was found" in notes[0]
    assert possible - 1 <= divided < 16


def test_folds_name_groups_of_several_classes_as_the_cause() -> None:
    """Three classes that share three groups in pairs cannot all be in both of two folds."""
    manifest = _manifest([[0, 1], [1, 2], [0, 2]]).assign(split="train")
    with pytest.raises(DataError, match="their groups also hold other classes"):
        folds_of(manifest, 2, 0)
