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
from patchline.pipeline.labels.label_sets import MULTI_LABEL, encoded, matrix
from tests.pipeline.data.splits.test_split import labels_of, table


def _rows(
    labels: Sequence[str], *, test: int = 0, groups: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return usable rows, the first `test` of them test images, every seventh for validation."""
    splits = ["validation" if number % 7 == 0 else "train" for number in range(len(labels))]
    splits[:test] = ["test"] * test
    return table(labels, splits=splits, groups=groups)


@settings(max_examples=20, deadline=None)
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


def test_folds_depend_on_the_content_and_the_seed_alone() -> None:
    """Renamed and reordered files stay in their folds; another seed gives other folds."""
    rows = _rows(labels_of(3, 20))
    shuffled = rows.sample(frac=1, random_state=3).reset_index(drop=True)
    shuffled["path"] = [f"new/{number}" for number in range(len(rows))]
    before = dict(zip(rows["sha256"], folds_of(rows, 4, 0), strict=True))
    assert dict(zip(shuffled["sha256"], folds_of(shuffled, 4, 0), strict=True)) == before
    assert dict(zip(rows["sha256"], folds_of(rows, 4, 1), strict=True)) != before


def test_a_group_and_copies_of_an_image_stay_together() -> None:
    """No group, and no file that exists twice, is on both sides of a fold."""
    groups = [f"patient {number // 4}" for number in range(80)]
    rows = _rows(labels_of(2, 40), groups=groups)
    rows.loc[[0, 70], "sha256"] = "0" * 64  # joins two groups of different classes
    rows["fold"] = folds_of(rows, 5, 0)
    for key in ("group", "sha256"):
        assert set(rows.groupby(key)["fold"].nunique()) == {1}
    assert set(rows["fold"]) == set(range(5))


def test_what_cannot_be_divided_is_an_error_with_its_reason() -> None:
    """A class of one group, and fewer images than folds."""
    lone = _rows(labels_of(2, 6), groups=["one"] * 6 + [""] * 6)
    with pytest.raises(DataError, match="of class 'class 0' are in the same fold"):
        folds_of(lone, 3, 0)
    with pytest.raises(DataError, match=r"only \d+ folds would have images"):
        folds_of(_rows(labels_of(2, 3)), 20, 0)


def test_small_classes_do_not_gather_in_the_same_folds() -> None:
    """Twenty classes of two images: each fold gets some of them."""
    counts = np.bincount(folds_of(_rows(labels_of(20, 2)), 5, 0), minlength=5)
    assert counts.min() >= 2


def _sets(images: int, seed: int) -> list[str]:
    """Return label sets of very different frequencies, some of them empty."""
    drawn = np.random.default_rng(seed).random((images, 6)) < np.geomspace(0.5, 0.05, 6)
    return [encoded(f"l{number}" for number in np.flatnonzero(row)) for row in drawn]


@pytest.mark.parametrize("seed", range(3))
def test_every_fold_has_its_share_of_every_label_of_sets(seed: int) -> None:
    """The counts of a label differ little between folds, and none has far more images."""
    rows = _rows(_sets(150, seed), test=20)
    folds = folds_of(rows, 5, seed, MULTI_LABEL)
    labels = matrix(rows["label"].tolist(), [f"l{number}" for number in range(6)])
    counts = np.array([labels[folds == fold].sum(axis=0) for fold in range(5)])
    assert (np.ptp(counts, axis=0) <= 3).all()
    assert np.ptp(np.bincount(folds[20:], minlength=5)) <= 4
    assert (folds[:20] == NO_FOLD).all()


def test_folds_of_sets_keep_groups_together_and_depend_on_the_content_alone() -> None:
    """Reordered files stay in their folds; the saved manifest says that labels are sets."""
    rows = _rows(_sets(90, 5), groups=[f"g{number // 3}" for number in range(90)])
    rows["fold"] = folds_of(rows, 3, 0, MULTI_LABEL)
    assert rows.groupby("group")["fold"].nunique().max() == 1
    shuffled = rows.sample(frac=1, random_state=0, ignore_index=True)
    shuffled.attrs["task"] = MULTI_LABEL
    assert (folds_of(shuffled, 3, 0) == shuffled["fold"]).all()


def test_a_label_that_is_in_one_fold_alone_stops_a_run_with_folds() -> None:
    """The remedy speaks of the label."""
    rows = _rows([encoded("a"), encoded("b"), encoded("ab")] * 6 + [encoded(["once"])])
    with pytest.raises(DataError, match=r"images of label 'once' are in the same fold"):
        folds_of(rows, 3, 0, MULTI_LABEL)
