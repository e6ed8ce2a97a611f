"""Folds: every class in its share, what belongs together in one fold, no test image in any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.data.splits.folds import NO_FOLD, folds_of, rows_of_fold
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task, encoded, matrix
from tests.pipeline.data.splits.made_tables import labels_of, table


def _rows(
    labels: Sequence[str], *, test: int = 0, groups: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return usable rows, the first `test` of them test images, every seventh for validation."""
    splits = ["validation" if number % 7 == 0 else "train" for number in range(len(labels))]
    return table(labels, split=["test"] * test + splits[test:], group=groups)


@settings(max_examples=12, deadline=None)
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
    rows = _rows(labels_of(3, 20) if task == SINGLE_LABEL else _sets(60))
    shuffled = rows.sample(frac=1, random_state=3, ignore_index=True)
    shuffled["path"] = [f"new/{number}" for number in range(len(rows))]
    before, after, other = (
        dict(zip(each["sha256"], folds_of(each, 4, seed, task), strict=True))
        for each, seed in ((rows, 0), (shuffled, 0), (rows, 1))
    )
    assert before == after
    assert before != other


def _sets(images: int) -> list[str]:
    """Return label sets of very different frequencies, some of them empty."""
    drawn = np.random.default_rng(0).random((images, 6)) < np.geomspace(0.5, 0.05, 6)
    return [encoded(f"l{number}" for number in np.flatnonzero(row)) for row in drawn]


@pytest.mark.parametrize("task", [SINGLE_LABEL, MULTI_LABEL])
def test_a_group_and_copies_of_an_image_stay_together(task: Task) -> None:
    """No group, and no file that exists twice, is on both sides of a fold."""
    labels = labels_of(2, 40) if task == SINGLE_LABEL else _sets(80)
    rows = _rows(labels, groups=[f"patient {number // 4}" for number in range(80)])
    rows.loc[[0, 70], "sha256"] = "0" * 64  # joins two groups of different classes
    rows["fold"] = folds_of(rows, 5, 0, task)
    for key in ("group", "sha256"):
        assert set(rows.groupby(key)["fold"].nunique()) == {1}
    assert set(rows["fold"]) == set(range(5))


def test_what_cannot_be_divided_is_an_error_with_its_reason() -> None:
    """A class of one group, a label of one image, and fewer images than folds."""
    lone = _rows(labels_of(2, 6), groups=["one"] * 6 + [""] * 6)
    once = _rows([encoded("a"), encoded("b"), encoded("ab")] * 6 + [encoded(["once"])])
    few = _rows(labels_of(2, 3))
    for rows, folds, task, words in (
        (lone, 3, SINGLE_LABEL, "of class 'class 0' are in the same fold"),
        (once, 3, MULTI_LABEL, "of label 'once' are in the same fold"),
        (few, 20, SINGLE_LABEL, r"only \d+ folds would have images"),
    ):
        with pytest.raises(DataError, match=words):
            folds_of(rows, folds, 0, task)


def test_small_classes_do_not_gather_in_the_same_folds() -> None:
    """Twenty classes of two images: each fold gets some of them."""
    counts = np.bincount(folds_of(_rows(labels_of(20, 2)), 5, 0), minlength=5)
    assert counts.min() >= 2


def test_every_fold_has_its_share_of_every_label_of_sets() -> None:
    """The counts of a label differ little between folds, and none has far more images."""
    rows = _rows(_sets(150), test=20)
    folds = folds_of(rows, 5, 0, MULTI_LABEL)
    labels = matrix(rows["label"].tolist(), [f"l{number}" for number in range(6)])
    counts = np.array([labels[folds == fold].sum(axis=0) for fold in range(5)])
    assert (np.ptp(counts, axis=0) <= 3).all()
    assert np.ptp(np.bincount(folds[20:], minlength=5)) <= 4
