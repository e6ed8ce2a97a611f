"""Groups of several classes: nearly all that can be divided is, and what is left is said."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pandas as pd
import pytest

from patchline.pipeline.data.splits.folds import folds_of
from patchline.pipeline.data.splits.split import learned
from patchline.pipeline.errors import DataError
from tests.pipeline.data.splits.made_tables import assigned, table

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


def _possible(units: int, classes: Classes, parts: int = 3) -> bool:
    """Return by brute force whether every class can be in every part."""
    return any(
        all(len({part_of[unit] for unit in members}) == parts for members in classes)
        for part_of in product(range(parts), repeat=units)
    )


def _manifest(classes: Classes, by: str = "group") -> pd.DataFrame:
    """Return a manifest with an image for each class of each unit: a group, or copies."""
    pairs = [(f"class {k}", unit) for k, members in enumerate(classes) for unit in members]
    columns: dict[str, Any] = {by: [f"unit {unit}" for _, unit in pairs]}
    columns["contents"] = [f"{label}/{unit}" for label, unit in pairs]
    manifest = table([label for label, _ in pairs], **columns)
    return manifest.assign(unit=[unit for _, unit in pairs])


def _whole(manifest: pd.DataFrame) -> bool:
    """Return whether each class is in each split."""
    return bool((manifest.groupby("label")["split"].nunique() == 3).all())


def test_splits_of_entangled_groups_are_nearly_always_whole() -> None:
    """Brute force divides hardly more; nothing moves after growth; what is left is said."""
    random_ = random.Random(1)  # noqa: S311 - no secret
    possible = divided = grown = 0
    refusals: list[str] = []
    for case in range(16):
        by = ("group", "pixels")[case % 2]
        units, classes = _random_classes(random_)
        before, notes = assigned(_manifest(classes, by), case)
        assert set(before.groupby("unit")["split"].nunique()) == {1}
        possible += _possible(units, classes)
        divided += _whole(before)
        assert _whole(before) or "no assignment of the new images was found" in notes[0]

        for members in classes:
            if random_.random() < 0.3:
                members.append(units)
        classes.append(sorted(random_.sample(range(units + 1), 3)))
        try:
            after, notes = assigned(_manifest(classes, by), case, remembered=learned(before))
        except DataError as error:  # all groups of the new class were held back
            refusals.append(str(error))
            continue
        splits_before, splits_after = (each.groupby("unit")["split"] for each in (before, after))
        assert splits_after.nunique().max() == 1
        assert (splits_after.first()[splits_before.first().index] == splits_before.first()).all()
        assert _whole(after) or notes
        grown += _whole(after)
    assert possible - 1 <= divided < 16
    assert grown >= 2
    sentence = "none to train on, because images never change their split"
    assert all(sentence in refusal for refusal in refusals)


def test_folds_of_entangled_groups_are_nearly_always_whole() -> None:
    """Each class is in two folds where brute force puts it there, and mostly in all that it can."""
    random_ = random.Random(3)  # noqa: S311 - no secret
    possible = everywhere = whole = 0
    for case in range(15):
        _, classes = _random_classes(random_)
        if case % 3 == 0:  # classes of two groups
            classes = [members[:2] for members in classes]
        manifest = _manifest(classes).assign(split="train")
        manifest["unit"] = manifest.groupby("unit").ngroup()
        ones = [sorted(set(own["unit"])) for _, own in manifest.groupby("label")]
        count = manifest["unit"].nunique()
        if count < 3 or not _possible(count, ones, parts=2):
            continue
        for folds in (2, 3):
            manifest["fold"] = folds_of(manifest, folds, case)
            least = manifest.groupby("label")["fold"].nunique().min()
            assert least >= 2
        assert set(manifest.groupby("unit")["fold"].nunique()) == {1}
        possible += 1
        everywhere += min(map(len, ones)) > 2 and _possible(count, ones)
        whole += least == 3
    assert everywhere - 1 <= whole < possible


def test_folds_name_groups_of_several_classes_as_the_cause() -> None:
    """Three classes that share three groups in pairs cannot all be in both of two folds."""
    manifest = _manifest([[0, 1], [1, 2], [0, 2]]).assign(split="train")
    with pytest.raises(DataError, match="their groups also hold other classes"):
        folds_of(manifest, 2, 0)


def test_ordinary_groups_keep_their_shares() -> None:
    """Of 400 patients with two of 20 classes each, few move for the sake of a class."""
    random_ = random.Random(2)  # noqa: S311 - no secret
    classes: Classes = [[] for _ in range(20)]
    for patient in range(400):
        for k in random_.sample(range(20), 2):
            classes[k].append(patient)
    manifest, notes = assigned(_manifest(classes))
    assert notes == []
    shares = manifest["split"].value_counts(normalize=True)
    assert shares[["test", "validation"]].tolist() == pytest.approx([0.15] * 2, abs=0.04)
