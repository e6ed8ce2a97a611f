"""The split: decided by content and `split_seed` alone, stable under growth, free of leaks."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    label_pairs,
    matrix,
)
from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.data.splits.class_coverage import SPLITS
from patchline.pipeline.data.splits.leakage import (
    GROUP_OF_COPIES,
    notes_on_augmented_copies,
    notes_on_patients,
)
from patchline.pipeline.data.splits.split import collect_assignments, origin
from patchline.pipeline.errors import DataError
from tests.pipeline.data.splits.made_tables import (
    assigned,
    by_content,
    labels_of,
    random_sets,
    table,
)


def splits_for_each(manifest: pd.DataFrame, column: str) -> set[int]:
    """Return in how many splits the images of one content, group or label lie."""
    return set(manifest.groupby(column)["split"].nunique())


def test_split_does_not_depend_on_names_or_order() -> None:
    """Renaming and reordering the files moves no image; one that is damaged is in no split."""
    manifest = table(labels_of(3, 60))
    manifest.loc[3, "status"] = "damaged"
    renamed = manifest.sample(frac=1, random_state=1).reset_index(drop=True)
    renamed["path"] = [f"new/{number}.jpg" for number in range(len(renamed))]
    found = by_content(assigned(manifest)[0])
    assert by_content(assigned(renamed)[0]) == found
    assert [place for place, split in enumerate(found.values()) if not split] == [3]
    assert (manifest["split"] == "").all()


def test_few_images_move_where_nothing_is_remembered_and_others_join() -> None:
    """Only those near a border, in a class of which the data has three times as many then."""
    before = table(["a"] * 400 + ["b"] * 400)
    more = table(["a", "c"] * 800, contents=[f"more {number}" for number in range(1600)])
    small = by_content(assigned(before)[0])
    after = by_content(assigned(pd.concat([more, before], ignore_index=True))[0])
    assert len([key for key, split in small.items() if after[key] != split]) < 0.08 * len(small)


def test_another_split_seed_gives_another_split() -> None:
    """`split_seed` chooses among splits."""
    manifest = table(labels_of(2, 200))
    assert len({tuple(assigned(manifest, seed)[0]["split"]) for seed in range(3)}) == 3


@given(
    counts=st.lists(st.integers(45, 90), min_size=2, max_size=5),
    groups=st.integers(1, 6),
    later=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_each_class_has_its_share_within_one_image(
    counts: list[int], groups: int, later: int, seed: int
) -> None:
    """Also with what comes later, and together; of groups, within the images of one."""
    labels = [f"class {k}" for k, count in enumerate(counts) for _ in range(count)]
    names = ["" if groups == 1 else f"{label} {n // groups}" for n, label in enumerate(labels)]
    rows = table(labels, group=names).sample(frac=1, random_state=seed % 1000)
    first, _ = assigned(rows.iloc[later:], seed)
    found, _ = assigned(rows, seed, remembered=collect_assignments(first))
    assert by_content(found).items() >= by_content(first).items()
    for split in ("test", "validation"):
        own = (found["split"] == split).groupby(found["label"]).sum()
        wanted = 0.15 * found.groupby("label").size()
        assert (own - wanted).abs().max() <= groups + 0.5
        if groups == 1 and not later:
            assert abs(own.sum() - wanted.sum()) <= 1


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(3, 12), min_size=2, max_size=6),
    seed=st.integers(0, 2**32),
    share=st.floats(0.01, 0.44),
)
def test_each_class_is_in_each_split(counts: list[int], seed: int, share: float) -> None:
    """With three different images or more a class is in train, validation and test."""
    labels = [f"class {k}" for k, count in enumerate(counts) for _ in range(count)]
    manifest, _ = assigned(table(labels), seed, share)
    for _label, rows in manifest.groupby("label"):
        assert set(rows["split"]) == set(SPLITS)


@given(
    data=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15)), min_size=12, max_size=60),
    seed=st.integers(0, 1000),
)
def test_copies_never_leak_whatever_the_data(data: list[tuple[str, int]], seed: int) -> None:
    """Copies share a split, also under two labels, or the data are refused."""
    manifest = table([label for label, _ in data], contents=[str(n) for _, n in data])
    try:
        manifest, _ = assigned(manifest, seed)
    except DataError:
        return
    assert splits_for_each(manifest, "sha256") == {1}


@pytest.mark.parametrize("patients", [3, 50])
@pytest.mark.parametrize("classes", [1, 2])
def test_groups_stay_together(patients: int, classes: int) -> None:
    """All images of one group are in one split, of one class or of both, few groups or many."""
    labels = ["a", "b"] * (3 * patients)
    groups = [f"{number // 6} {label * (2 - classes)}" for number, label in enumerate(labels)]
    manifest, _ = assigned(table(labels, group=groups), seed=1)
    assert splits_for_each(manifest, "group") == {1}
    assert splits_for_each(manifest, "label") == {3}


def test_class_that_cannot_be_divided_is_refused() -> None:
    """A class whose images all belong together cannot be in three splits, and is refused."""
    labels = ["a"] * 6 + ["b"] * 60
    for columns in (
        {"contents": ["the same"] * 6 + [f"{n}" for n in range(60)]},
        {"group": ["patient"] * 6 + [""] * 60},
    ):
        with pytest.raises(DataError, match="'a'"):
            assigned(table(labels, **columns))


def labelled(reasons: Sequence[str], start: int = 0) -> pd.DataFrame:
    """Return a manifest of images that were labelled one after another, with the reasons."""
    labels = [f"class {number // 7 % 3}" for number in range(len(reasons))]
    rows = table(labels, contents=[f"{start + number}" for number in range(len(reasons))])
    return rows.assign(**{"column:patchline_label_source": list(reasons)})


@pytest.mark.parametrize("task", [SINGLE_LABEL, MULTI_LABEL])
def test_images_that_were_chosen_to_be_labelled_are_not_tested_on(task: Task) -> None:
    """The splits have their shares all the same, as the table grows, also of sets of labels."""
    turns = ("uncertain", "representative", "random", "rest", "feedback", "random")
    before: list[str] = []
    earlier, rows = None, pd.DataFrame()
    for start in (0, 600):
        more = labelled(turns * 100, start)
        if task == MULTI_LABEL:
            more["label"] = '["' + more["label"] + '"]'
        rows = pd.concat([rows, more], ignore_index=True)
        found, notes = assigned(rows, 3, remembered=earlier, task=task)
        shares = found["split"].value_counts(normalize=True)
        assert (found[found["split"] == "test"]["column:patchline_label_source"] == "random").all()
        assert shares[["test", "validation"]].tolist() == pytest.approx([0.15] * 2, abs=0.05)
        assert notes == random_draws.notes(found) == []
        assert found["split"].tolist()[: len(before)] == before
        earlier, before = collect_assignments(found), found["split"].tolist()
    assert "those that were drawn at random" in origin(rows, ["test"])


def test_a_group_is_tested_on_if_it_was_drawn_and_no_image_of_it_was_chosen() -> None:
    """A near duplicate counts as the image that a person was asked about."""
    kinds = {
        "drawn": ("random", "near duplicate"),
        "chosen": ("uncertain", "near duplicate"),
        "both": ("random", "uncertain"),
        "unknown": ("near duplicate", "near duplicate"),
    }
    names = [(kind, number) for number in range(60) for kind in kinds]
    rows = labelled([reason for kind, _ in names for reason in kinds[kind]])
    rows["label"] = [f"class {number % 3}" for _, number in names for _ in range(2)]
    rows["group"] = [f"near {kind} {number}" for kind, number in names for _ in range(2)]
    found, _ = assigned(rows)
    tested = found[found["split"] == "test"]["group"].str.split().str[1]
    assert set(tested) == {"drawn"}
    assert len(tested) == pytest.approx(0.15 * len(rows), abs=20)


def test_augmented_copies_in_two_splits_are_named_with_the_pattern_that_joins_them() -> None:
    """Only their names tell; copies within one split are as they should be."""
    hashes = ("0f3a" * 8, "91bc" * 8, "Zk3mQ8tWn1LpV5xR7dY2")
    together = [(f"train/oak/a_jpg.rf.{each}.jpg", "train") for each in hashes]
    apart = [
        (f"train/ash/b_jpg.rf.{hashes[0]}.jpg", "train"),
        (f"train/ash/b_jpg.rf.{hashes[1]}.jpg", "test"),
        ("train/ash/c.rf.jpg", "train"),
        ("train/ash/c.rf.png", "test"),
    ]
    rows = pd.DataFrame([*together, *apart], columns=["path", "split"])
    assert notes_on_augmented_copies(rows[:4]) == []
    [note] = notes_on_augmented_copies(rows)
    assert note.startswith("1 photograph appears in more than one split")
    assert "b_jpg" in note
    assert f"--data.group-pattern '{GROUP_OF_COPIES}'" in note
    found = [re.search(GROUP_OF_COPIES, path) for path in rows["path"][:5]]
    assert [each and each[1] for each in found] == ["a_jpg"] * 3 + ["b_jpg"] * 2


def test_patients_whom_paths_name_in_two_splits_are_named_with_the_pattern_that_joins_them() -> (
    None
):
    """Their paths name them; not where they are the classes."""
    rows = pd.DataFrame(
        {"path": [f"patient{n // 2:05d}/{n}.jpg" for n in range(6)], "label": "ill"}
    )
    rows["split"] = ["train", "test", *["train"] * 4]
    [note] = notes_on_patients(rows.assign(label="ill"))
    assert note.startswith("1 patient appears in more than one split")
    [pattern] = re.findall("--data.group-pattern '(.*)'", note)
    assert rows["path"].str.extract(pattern)[0].nunique() == 3
    assert notes_on_patients(rows.assign(label="patient00000")) == []


SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}
USUAL = (0.4, 0.02)
"""Shares of images with the most and the least frequent label."""


def _misses(manifest: pd.DataFrame) -> float:
    """Return by how many images a label misses its share of a split at most."""
    labels = matrix(manifest["label"].tolist(), label_pairs(manifest["label"], MULTI_LABEL).names)
    return max(
        float(
            np.abs(
                labels[manifest["split"] == split].sum(axis=0) - share * labels.sum(axis=0)
            ).max()
        )
        for split, share in SHARES.items()
    )


@pytest.mark.parametrize("seed", range(2))
def test_each_label_has_its_share_in_each_split(seed: int) -> None:
    """No label misses its share by more than two images, and no split its size by more than 3 %."""
    found, notes = assigned(table(random_sets(400, 12, seed, USUAL)), seed, task=MULTI_LABEL)
    assert _misses(found) <= 2.5
    assert found["split"].value_counts(normalize=True).to_dict() == pytest.approx(SHARES, abs=0.03)
    assert notes == []


@pytest.mark.parametrize("steps", [[100, 140, 200, 320], [40, 41, 42, 43, 44, 60, 200]])
def test_no_image_moves_when_the_data_grows(steps: list[int]) -> None:
    """Remembered images stay, and the new ones bring the labels nearer to their shares."""
    manifest = table(random_sets(steps[-1], 8, 2, USUAL))
    remembered: pd.DataFrame | None = None
    before = dict[str, str]()
    for size in steps:
        found, _ = assigned(manifest.iloc[:size], remembered=remembered, task=MULTI_LABEL)
        remembered, now = collect_assignments(found), by_content(found)
        assert {key: now[key] for key in before} == before
        before = now
    assert _misses(found) <= 4


def test_rare_labels_are_in_training_first_then_in_the_test_split() -> None:
    """Labels with fewer images than splits are said; with enough, they are everywhere."""
    sets = [["a"], ["b"], ["a", "b"], []] * 15
    sets += [["once", "a"], ["twice"], ["twice", "b"], *([["thrice"]] * 3)]
    found, notes = assigned(table([encode_labels(each) for each in sets]), task=MULTI_LABEL)
    for name, splits in (
        ("once", ["train"]),
        ("twice", ["test", "train"]),
        ("thrice", ["test", "train", "validation"]),
    ):
        assert sorted(found.loc[found["label"].str.contains(name), "split"]) == splits
    assert notes[0].startswith("1 label without test images")
    assert found.loc[found["label"] == "[]", "split"].value_counts().to_dict() == pytest.approx(
        {"train": 10.5, "validation": 2.25, "test": 2.25}, abs=1
    )
    assert "once, twice" in notes[1]


def test_a_label_without_training_images_is_an_error_with_a_remedy() -> None:
    """It names the label and where its images are."""
    sets = [encode_labels(each) for each in ("a", "b", "ab", "")] * 15 + [encode_labels(["only"])]
    with pytest.raises(DataError, match=r"Label 'only' has images in test, but none to train on"):
        assigned(table(sets, split=[""] * 60 + ["test"]), task=MULTI_LABEL)
