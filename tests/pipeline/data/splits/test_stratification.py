"""Tests of iterative stratification: what each split has of each label."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.splits.split import learned
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_pairs import label_pairs
from patchline.pipeline.labels.label_sets import MULTI_LABEL, encoded, matrix
from tests.pipeline.data.splits.made_tables import assigned, by_content, table

SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}


def _random_sets(images: int, labels: int, seed: int) -> list[str]:
    """Return sets in which some labels are frequent, some rare, and some imply another."""
    generator = np.random.default_rng(seed)
    drawn = generator.random((images, labels)) < np.geomspace(0.4, 0.02, labels)
    drawn[:, 0] |= drawn[:, -1]
    return [encoded(f"l{number}" for number in np.flatnonzero(row)) for row in drawn]


def _misses(manifest: pd.DataFrame) -> float:
    """Return by how many images a label misses its share of a split at most."""
    labels = matrix(manifest["label"].tolist(), label_pairs(manifest["label"], MULTI_LABEL).names)
    return max(
        np.abs(labels[manifest["split"] == split].sum(axis=0) - share * labels.sum(axis=0)).max()
        for split, share in SHARES.items()
    )


@pytest.mark.parametrize("seed", range(2))
def test_each_label_has_its_share_in_each_split(seed: int) -> None:
    """No label misses its share by more than two images, and no split its size by more than 2 %."""
    found, notes = assigned(table(_random_sets(400, 12, seed)), seed, task=MULTI_LABEL)
    assert _misses(found) <= 2.5
    shares = found["split"].value_counts(normalize=True)
    assert shares.to_dict() == pytest.approx(SHARES, abs=0.02)
    assert notes == []


def test_images_without_labels_are_divided_like_the_others() -> None:
    """They are in each split in its share, and none is left out."""
    sets = [encoded(each) for each in ("a", "", "b", "", "ab")] * 20
    found, _ = assigned(table(sets), task=MULTI_LABEL)
    without = found.loc[found["label"] == "[]", "split"].value_counts()
    assert without.to_dict() == {"train": 28, "validation": 6, "test": 6}


def test_the_order_and_names_of_the_files_decide_nothing() -> None:
    """The same contents give the same split, and another seed another one."""
    manifest = table(_random_sets(150, 8, 1))
    shuffled = manifest.sample(frac=1, random_state=0, ignore_index=True)
    shuffled["path"] = [f"other/{n}.jpg" for n in range(len(shuffled))]
    found, again, other = (
        by_content(assigned(each, seed, task=MULTI_LABEL)[0])
        for each, seed in ((manifest, 0), (shuffled, 0), (manifest, 1))
    )
    assert found == again
    assert found != other


@pytest.mark.parametrize("steps", [[100, 140, 200, 320], [40, 41, 42, 43, 44, 60, 200]])
def test_no_image_moves_when_the_data_grows(steps: list[int]) -> None:
    """Remembered images stay, and the new ones bring the labels nearer to their shares."""
    manifest = table(_random_sets(steps[-1], 8, 2))
    remembered: pd.DataFrame | None = None
    before = dict[str, str]()
    for size in steps:
        found, _ = assigned(manifest.iloc[:size], remembered=remembered, task=MULTI_LABEL)
        remembered, now = learned(found), by_content(found)
        assert {key: now[key] for key in before} == before
        before = now
    assert _misses(found) <= 4


def test_groups_and_copies_are_in_one_split() -> None:
    """Images of one group are never divided, and the shares hold as far as groups allow."""
    manifest = table(_random_sets(300, 6, 3), group=[f"g{number // 3}" for number in range(300)])
    manifest.loc[[5, 200], "sha256"] = "c" * 64  # a copy ties two groups
    found, _ = assigned(manifest, task=MULTI_LABEL)
    assert found.groupby("group")["split"].nunique().max() == 1
    assert found["split"][5] == found["split"][200]
    assert _misses(found) <= 5


def test_rare_labels_are_in_training_first_then_in_the_test_split() -> None:
    """Labels with fewer images than splits are said; with enough, they are everywhere."""
    sets = [["a"], ["b"], ["a", "b"], []] * 15
    sets += [["once", "a"], ["twice"], ["twice", "b"], *([["thrice"]] * 3)]
    found, notes = assigned(table([encoded(each) for each in sets]), task=MULTI_LABEL)
    for name, splits in (
        ("once", ["train"]),
        ("twice", ["test", "train"]),
        ("thrice", ["test", "train", "validation"]),
    ):
        assert sorted(found.loc[found["label"].str.contains(name), "split"]) == splits
    assert notes[0].startswith("1 label without test images")
    assert "once, twice" in notes[1]


def test_splits_that_the_data_gives_are_kept() -> None:
    """Only validation images are split off where the data has test images."""
    manifest = table(_random_sets(200, 5, 4), split=["test", "", "", ""] * 50)
    found, _ = assigned(manifest, task=MULTI_LABEL)
    assert (found.loc[::4, "split"] == "test").all()
    assert found["split"].value_counts()[["test", "validation"]].tolist() == [50, 22]


def test_a_label_without_training_images_is_an_error_with_a_remedy() -> None:
    """It names the label and where its images are."""
    sets = [encoded(each) for each in ("a", "b", "ab", "")] * 15 + [encoded(["only"])]
    with pytest.raises(DataError, match=r"Label 'only' has images in test, but none to train on"):
        assigned(table(sets, split=[""] * 60 + ["test"]), task=MULTI_LABEL)
