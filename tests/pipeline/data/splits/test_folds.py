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
