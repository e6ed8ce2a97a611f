"""Tests of iterative stratification: what each split has of each label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.splits.split import assign, learned
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_pairs import label_pairs
from patchline.pipeline.labels.label_sets import MULTI_LABEL, encoded, matrix

SPLITS = ("train", "validation", "test")


def _manifest(
    sets: Sequence[Sequence[str]],
    groups: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    first: int = 0,
) -> pd.DataFrame:
    """Return images with sets of labels, one content each."""
    digests = [hashlib.sha256(f"{first + n}".encode()).hexdigest() for n in range(len(sets))]
    return pd.DataFrame(
        {
            "path": [f"{first + n}.png" for n in range(len(sets))],
            "label": [encoded(each) for each in sets],
            "split": splits or [""] * len(sets),
            "group": groups or [""] * len(sets),
            "sha256": digests,
            "pixels": [digest[:32] for digest in digests],
            "status": "ok",
        }
    )


def _assigned(
    manifest: pd.DataFrame, seed: int, remembered: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, list[str]]:
    return assign(
        manifest,
        validation_fraction=0.15,
        test_fraction=0.15,
        seed=seed,
        remembered=remembered,
        task=MULTI_LABEL,
    )


def _random_sets(images: int, labels: int, seed: int) -> list[list[str]]:
    """Return sets in which some labels are frequent, some rare, and some imply another."""
    generator = np.random.default_rng(seed)
    rates = np.geomspace(0.4, 0.02, labels)
    drawn = generator.random((images, labels)) < rates
    drawn[:, 0] |= drawn[:, -1]
    return [[f"l{number}" for number in np.flatnonzero(row)] for row in drawn]


def _shares(manifest: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """Return the share of each label's images in each split."""
    labels = matrix(manifest["label"].tolist(), classes)
    table = pd.DataFrame(labels, columns=list(classes)).groupby(manifest["split"].to_numpy()).sum()
    return table / table.sum()


def _deviation(manifest: pd.DataFrame, classes: Sequence[str]) -> float:
    """Return the mean distance of the labels' shares from the wanted ones (LD in the paper)."""
    wanted = pd.Series({"train": 0.7, "validation": 0.15, "test": 0.15})
    shares = _shares(manifest, classes).reindex(SPLITS).fillna(0)
    return float(shares.sub(wanted, axis=0).abs().to_numpy().mean())


def _random_split(manifest: pd.DataFrame, seed: int) -> pd.DataFrame:
    order = np.random.default_rng(seed).permutation(len(manifest))
    places = np.searchsorted([0.7, 0.85], order / len(manifest), side="right")
    return manifest.assign(split=np.array(SPLITS, dtype=object)[places])


@pytest.mark.parametrize("seed", range(4))
def test_each_label_has_its_share_in_each_split(seed: int) -> None:
    """No label misses its share by more than two images, and no split its size by more than 2 %."""
    manifest = _manifest(_random_sets(400, 12, seed))
    classes = label_pairs(manifest["label"], MULTI_LABEL).names
    found, notes = _assigned(manifest, seed)
    labels = matrix(found["label"].tolist(), classes)
    for split, share in zip(SPLITS, (0.7, 0.15, 0.15), strict=True):
        there = labels[(found["split"] == split).to_numpy()].sum(axis=0)
        assert np.abs(there - share * labels.sum(axis=0)).max() <= 2.5
        assert abs((found["split"] == split).sum() - share * len(found)) <= 0.02 * len(found)
    assert notes == []


def test_stratification_is_nearer_to_the_wanted_shares_than_chance() -> None:
    """Over many seeds, the labels' distribution is at least twice as near as a random split's."""
    own, random = [], []
    for seed in range(12):
        manifest = _manifest(_random_sets(400, 10, seed))
        classes = label_pairs(manifest["label"], MULTI_LABEL).names
        found, _ = _assigned(manifest, seed)
        own.append(_deviation(found, classes))
        random.append(_deviation(_random_split(manifest, seed), classes))
    assert sum(mine < other for mine, other in zip(own, random, strict=True)) >= 11
    assert np.mean(own) < np.mean(random) / 2


def test_images_without_labels_are_divided_like_the_others() -> None:
    """They are in each split in its share, and none is left out."""
    manifest = _manifest([["a"], [], ["b"], [], ["a", "b"]] * 20)
    found, _ = _assigned(manifest, 0)
    without = found.loc[found["label"] == "[]", "split"].value_counts()
    assert without.to_dict() == {"train": 28, "validation": 6, "test": 6}


def test_the_order_and_names_of_the_files_decide_nothing() -> None:
    """The same contents give the same split, and another seed another one."""
    manifest = _manifest(_random_sets(150, 8, 1))
    shuffled = manifest.sample(frac=1, random_state=0, ignore_index=True)
    shuffled["path"] = [f"other/{n}.jpg" for n in range(len(shuffled))]
    found, again, other = (
        _assigned(each, seed)[0].set_index("sha256")["split"]
        for each, seed in ((manifest, 0), (shuffled, 0), (manifest, 1))
    )
    assert found.to_dict() == again.to_dict()
    assert found.to_dict() != other.to_dict()


@pytest.mark.parametrize("steps", [[100, 140, 200, 320], [40, 41, 42, 43, 44, 60, 200]])
def test_no_image_moves_when_the_data_grows(steps: list[int]) -> None:
    """Remembered images stay, and the new ones bring the labels nearer to their shares."""
    manifest = _manifest(_random_sets(steps[-1], 8, 2))
    remembered: pd.DataFrame | None = None
    before: dict[str, str] = {}
    for size in steps:
        part = manifest.iloc[:size]
        found, _ = _assigned(part, 0, remembered)
        now = dict(zip(found["sha256"], found["split"], strict=True))
        assert {key: now[key] for key in before} == before
        remembered, before = learned(found), now
    classes = label_pairs(found["label"], MULTI_LABEL).names
    assert _deviation(found, classes) < 0.02


def test_groups_and_copies_are_in_one_split() -> None:
    """Images of one group are never divided, and the shares hold as far as groups allow."""
    sets = _random_sets(300, 6, 3)
    groups = [f"g{number // 3}" for number in range(300)]
    manifest = _manifest(sets, groups)
    manifest.loc[[5, 200], "sha256"] = "c" * 64  # a copy ties two groups
    found, _ = _assigned(manifest, 0)
    assert found.groupby("group")["split"].nunique().max() == 1
    assert found["split"][5] == found["split"][200]
    classes = label_pairs(found["label"], MULTI_LABEL).names
    assert _deviation(found, classes) < _deviation(_random_split(manifest, 0), classes)


def test_rare_labels_are_in_training_first_then_in_the_test_split() -> None:
    """Labels with fewer images than splits are said; with enough, they are everywhere."""
    sets = [["a"], ["b"], ["a", "b"], []] * 15
    sets += [["once", "a"], ["twice"], ["twice", "b"], *([["thrice"]] * 3)]
    found, notes = _assigned(_manifest(sets), 0)
    where = {
        name: sorted(found.loc[found["label"].str.contains(name), "split"])
        for name in ("once", "twice", "thrice")
    }
    assert where["once"] == ["train"]
    assert where["twice"] == ["test", "train"]
    assert where["thrice"] == ["test", "train", "validation"]
    assert len(notes) == 2
    assert notes[0].startswith("1 label without test images")
    assert "once, twice" in notes[1]


def test_splits_that_the_data_gives_are_kept() -> None:
    """Only validation images are split off where the data has test images."""
    sets = _random_sets(200, 5, 4)
    splits = ["test" if number % 4 == 0 else "" for number in range(200)]
    found, _ = _assigned(_manifest(sets, splits=splits), 0)
    assert (found.loc[::4, "split"] == "test").all()
    assert found["split"].value_counts()["test"] == 50
    assert abs(found["split"].value_counts()["validation"] - 22.5) <= 2


def test_a_label_without_training_images_is_an_error_with_a_remedy() -> None:
    """It names the label and where its images are."""
    sets = [["a"], ["b"], ["a", "b"], []] * 15 + [["only"]]
    splits = [""] * 60 + ["test"]
    with pytest.raises(DataError, match=r"Label 'only' has images in test, but none to train on"):
        _assigned(_manifest(sets, splits=splits), 0)
