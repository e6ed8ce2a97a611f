"""The split: decided by content and `split_seed` alone, stable under growth, free of leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.data.splits.split import assign, learned, origin, split_fractions
from patchline.pipeline.data.splits.split_gaps import SPLITS
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task


def table(
    labels: Sequence[str],
    *,
    contents: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return a manifest of good images; by default each has a content of its own."""
    count = len(labels)
    keys = contents or [f"{label}/{number}" for number, label in enumerate(labels)]
    return pd.DataFrame(
        {
            "path": list(names or [f"{number:05d}.png" for number in range(count)]),
            "label": list(labels),
            "split": list(splits or [""] * count),
            "group": list(groups or [""] * count),
            "sha256": [hashlib.sha256(key.encode()).hexdigest() for key in keys],
            "status": ["ok"] * count,
        }
    )


def split_of(
    manifest: pd.DataFrame, *, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> pd.DataFrame:
    """Return the manifest with its splits."""
    return assign(manifest, validation_fraction=validation, test_fraction=test, seed=seed)[0]


def by_content(manifest: pd.DataFrame) -> dict[str, str]:
    """Return the split of each content."""
    return dict(zip(manifest["sha256"], manifest["split"], strict=True))


def splits_for_each(manifest: pd.DataFrame, column: str) -> set[int]:
    """Return in how many splits the images of one content, group or label lie."""
    return set(manifest.groupby(column)["split"].nunique())


def labels_of(classes: int, images: int) -> list[str]:
    """Return the labels of a balanced data set."""
    return [f"class {number}" for number in range(classes) for _ in range(images)]


def test_split_does_not_depend_on_names_or_order() -> None:
    """Renaming and reordering the files moves no image to another split."""
    manifest = table(labels_of(3, 60))
    renamed = manifest.sample(frac=1, random_state=1).reset_index(drop=True)
    renamed["path"] = [f"new/{number}.jpg" for number in range(len(renamed))]
    assert by_content(split_of(renamed)) == by_content(split_of(manifest))


def test_input_is_not_changed() -> None:
    """The manifest that is given stays without splits."""
    manifest = table(labels_of(2, 20))
    split_of(manifest)
    assert (manifest["split"] == "").all()


@settings(max_examples=15, deadline=None)
@given(first=st.integers(30, 80), added=st.integers(3, 80), seed=st.integers(0, 10_000))
def test_split_is_stable_when_images_are_added(first: int, added: int, seed: int) -> None:
    """An image stays where it is when others join, in its own class and in a new one."""
    before = table(["a"] * first + ["b"] * first)
    more = table(["a", "c"] * added, contents=[f"more {number}" for number in range(2 * added)])
    small = split_of(before, seed=seed)
    crowded = split_of(pd.concat([more, before], ignore_index=True), seed=seed)
    after = by_content(crowded)
    moved = {key for key, split in by_content(small).items() if after[key] != split}
    assert len(moved) <= _lone_images(small)


def _lone_images(manifest: pd.DataFrame) -> int:
    """Return how many images are the only one of their class in a split: chance may free them."""
    counts = manifest.groupby(["label", "split"]).size()
    return int((counts == 1).sum())


def test_another_split_seed_gives_another_split() -> None:
    """`split_seed` chooses among splits; the same seed always gives the same one."""
    manifest = table(labels_of(2, 200))
    seen = [tuple(split_of(manifest, seed=seed)["split"]) for seed in (0, 1, 2)]
    assert len(set(seen)) == 3
    assert tuple(split_of(manifest, seed=0)["split"]) == seen[0]


@pytest.mark.parametrize(("validation", "test"), [(0.15, 0.15), (0.1, 0.3), (0.4, 0.05)])
def test_shares_are_about_as_asked(validation: float, test: float) -> None:
    """Of many images the asked shares are held back, in every class, up to chance."""
    manifest = split_of(table(labels_of(3, 2000)), validation=validation, test=test)
    for _label, rows in manifest.groupby("label"):
        shares = rows["split"].value_counts(normalize=True)
        assert shares["test"] == pytest.approx(test, abs=0.03)
        assert shares["validation"] == pytest.approx(validation, abs=0.03)
        assert shares["train"] == pytest.approx(1 - validation - test, abs=0.03)


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(3, 12), min_size=2, max_size=6),
    seed=st.integers(0, 2**32),
    share=st.floats(0.01, 0.44),
)
def test_each_class_is_in_each_split(counts: list[int], seed: int, share: float) -> None:
    """With three different images or more a class is in train, validation and test."""
    labels = [f"class {k}" for k, count in enumerate(counts) for _ in range(count)]
    manifest = split_of(table(labels), validation=share, test=share, seed=seed)
    for _label, rows in manifest.groupby("label"):
        assert set(rows["split"]) == set(SPLITS)


@pytest.mark.parametrize("copies", [4, 40])
@pytest.mark.parametrize("seed", range(5))
def test_copies_of_an_image_are_never_in_two_splits(copies: int, seed: int) -> None:
    """Identical files stay together, also where their class has few other images."""
    contents = ["the same"] * copies + ["another", "a third"]
    manifest = split_of(table(["a"] * len(contents), contents=contents), seed=seed)
    assert splits_for_each(manifest, "sha256") == {1}


@settings(max_examples=20, deadline=None)
@given(
    data=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15)), min_size=12, max_size=60),
    seed=st.integers(0, 1000),
)
def test_copies_never_leak_whatever_the_data(data: list[tuple[str, int]], seed: int) -> None:
    """Copies share a split, also under two labels, or the data are refused."""
    manifest = table([label for label, _ in data], contents=[str(n) for _, n in data])
    try:
        manifest = split_of(manifest, seed=seed)
    except DataError:
        return
    assert splits_for_each(manifest, "sha256") == {1}


@pytest.mark.parametrize("patients", [3, 5, 50])
@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_together(patients: int, seed: int) -> None:
    """All images of one group are in one split, of one class or of both, few groups or many."""
    labels = ["a", "b"] * (3 * patients)
    of_both_classes = [f"patient {number // 6}" for number in range(len(labels))]
    of_one_class = [
        f"{group} {label}" for group, label in zip(of_both_classes, labels, strict=True)
    ]
    for groups in (of_both_classes, of_one_class):
        manifest = split_of(table(labels, groups=groups), seed=seed)
        assert splits_for_each(manifest, "group") == {1}
        assert splits_for_each(manifest, "label") == {3}


@pytest.mark.parametrize("together", ["copies", "one group"])
def test_class_that_cannot_be_divided_is_refused(together: str) -> None:
    """A class whose images all belong together cannot be in three splits, and is refused."""
    labels = ["a"] * 6 + ["b"] * 60
    manifest = (
        table(labels, contents=["the same"] * 6 + [f"{n}" for n in range(60)])
        if together == "copies"
        else table(labels, groups=["patient"] * 6 + [""] * 60)
    )
    with pytest.raises(DataError, match="'a'"):
        split_of(manifest)


def test_given_splits_are_kept() -> None:
    """Where the source gives all splits, nothing moves and nothing is noted."""
    splits = ["train", "train", "validation", "test"] * 5
    manifest, notes = assign(
        table(["a", "b"] * 10, splits=splits),
        validation_fraction=0.15,
        test_fraction=0.15,
        seed=0,
    )
    assert list(manifest["split"]) == splits
    assert notes == []


def test_missing_test_split_is_carved_from_train() -> None:
    """A source without a test split gives some of its training images, and a note says so."""
    splits = ["train"] * 160 + ["validation"] * 40
    manifest, notes = assign(
        table(["a", "b"] * 100, splits=splits),
        validation_fraction=0.15,
        test_fraction=0.2,
        seed=0,
    )
    assert set(manifest["split"][:160]) == {"train", "test"}
    assert (manifest["split"][160:] == "validation").all()
    assert (manifest["split"] == "test").sum() == pytest.approx(32, abs=16)
    assert notes == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("",), "test and validation split off from all images"),
        (("train",), "test and validation split off from train"),
        (("train", "validation"), "test split off from train"),
        (("train", "validation", "test"), "as given by the data"),
    ],
)
def test_the_origin_of_the_splits_is_named(parts: tuple[str, ...], words: str) -> None:
    """A few words tell which splits the source gives, and which were split off from what."""
    images = table(labels_of(2, 6), splits=list(parts) * (12 // len(parts)))
    assert origin(images, split_fractions(images, 0.1, 0.2)) == words


def test_image_that_cannot_be_used_is_in_no_split() -> None:
    """A damaged image is in no split, whatever the source says."""
    manifest = table(labels_of(2, 10), splits=["train"] * 20)
    manifest.loc[3, "status"] = "damaged"
    manifest = split_of(manifest)
    assert manifest.loc[3, "split"] == ""
    assert (manifest.drop(index=3)["split"] != "").all()


@pytest.mark.parametrize(("images", "words"), [(1, "1 usable image,"), (2, "2 usable images,")])
def test_too_few_images_are_answered_in_a_sentence(images: int, words: str) -> None:
    """A class with fewer images than splits is named, with both numbers and the remedy."""
    with pytest.raises(DataError) as raised:
        split_of(table(["rare"] * images + ["frequent"] * 30))
    sentence = str(raised.value)
    assert "'rare'" in sentence
    assert words in sentence
    assert "3 splits (train, validation, test)" in sentence
    assert "Add images" in sentence


@pytest.mark.parametrize("split", ["test", "validation"])
def test_class_without_training_images_is_refused(split: str) -> None:
    """A class that the source puts into a held-back split alone cannot be learned."""
    labels = ["a", "b"] * 20 + ["late"]
    splits = (["train"] * 4 + ["validation"] * 3 + ["test"] * 3) * 4 + [split]
    with pytest.raises(DataError) as raised:
        split_of(table(labels, splits=splits))
    sentence = str(raised.value)
    assert "'late'" in sentence
    assert split in sentence
    assert "Add some" in sentence


def labelled(reasons: Sequence[str], *, classes: int = 3, start: int = 0) -> pd.DataFrame:
    """Return a manifest of images that were labelled one after another, with the reasons."""
    labels = [f"class {number // 7 % classes}" for number in range(len(reasons))]
    contents = [f"{start + number}" for number in range(len(reasons))]
    return table(labels, contents=contents).assign(
        **{"column:patchline_label_source": list(reasons)}
    )


TURNS = ("uncertain", "representative", "random", "rest", "feedback", "random")


@pytest.mark.parametrize("task", [SINGLE_LABEL, MULTI_LABEL])
def test_images_that_were_chosen_to_be_labelled_are_not_tested_on(task: Task) -> None:
    """The splits have their shares all the same, as the table grows, also of sets of labels."""
    before: list[str] = []
    earlier, whole = None, pd.DataFrame()
    for start in (0, 600):
        whole = pd.concat([whole, labelled(TURNS * 100, start=start)], ignore_index=True)
        rows = whole.assign(label='["' + whole["label"] + '"]') if task == MULTI_LABEL else whole
        found, notes = assign(
            rows,
            validation_fraction=0.15,
            test_fraction=0.15,
            seed=3,
            remembered=earlier,
            task=task,
        )
        is_random = found["column:patchline_label_source"] == "random"
        shares = found["split"].value_counts(normalize=True)
        assert is_random[found["split"] == "test"].all()
        assert shares["test"] == pytest.approx(0.15, abs=0.05)
        assert shares["validation"] == pytest.approx(0.15, abs=0.05)
        assert notes == []
        assert random_draws.notes(found) == []
        assert found["split"].tolist()[: len(before)] == before
        earlier, before = learned(found), found["split"].tolist()
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
    found = split_of(rows)
    assert splits_for_each(found, "group") == {1}
    tested = found[found["split"] == "test"]["group"].str.split().str[1]
    assert set(tested) == {"drawn"}
    assert len(tested) == pytest.approx(0.15 * len(rows), abs=20)


def test_too_few_images_drawn_at_random_are_said() -> None:
    """Nine are no test; a class that was only chosen is tested on all the same."""
    few = split_of(labelled(["uncertain"] * 81 + ["random"] * 9))
    tested = int((few["split"] == "test").sum())
    [note] = random_draws.notes(few)
    assert f"of the {tested} test images were not drawn at random" in note
    rare = labelled(["random"] * 60 + ["uncertain"] * 60)
    rare.loc[100:, "label"] = "rare"
    [note] = random_draws.notes(split_of(rare))
    assert note.startswith("1 of the")
    assert random_draws.notes(split_of(table(labels_of(3, 30)))) == []
