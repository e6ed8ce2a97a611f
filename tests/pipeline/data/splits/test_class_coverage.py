"""Groups of several classes: what can be divided is, and what cannot says why."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.splits import split
from patchline.pipeline.data.splits.class_coverage import Demand, Search, Units
from patchline.pipeline.data.splits.folds import folds_of
from patchline.pipeline.data.splits.split_gaps import SPLITS as SPLIT_NAMES
from patchline.pipeline.data.splits.split_memory import SplitMemory
from patchline.pipeline.errors import DataError
from tests.pipeline.data.splits.test_split import table

FRACTIONS: dict[str, Any] = {"validation_fraction": 0.15, "test_fraction": 0.15}
SPLITS = {name: place for place, name in enumerate(SPLIT_NAMES)}
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


def _possible(units: int, classes: Classes, fixed: Mapping[Any, int], parts: int = 3) -> bool:
    """Return by brute force whether every class can be in every part."""
    free = [unit for unit in range(units) if unit not in fixed]
    for chosen in product(range(parts), repeat=len(free)):
        part_of = {**fixed, **dict(zip(free, chosen, strict=True))}
        if all(len({part_of[unit] for unit in members}) == parts for members in classes):
            return True
    return False


def _manifest(classes: Classes, *, by: str = "group") -> pd.DataFrame:
    """Return a manifest with an image for each class of each unit: a group, or copies."""
    pairs = [(f"class {k}", unit) for k, members in enumerate(classes) for unit in members]
    manifest = table(
        [label for label, _ in pairs],
        contents=[f"{label}/{unit}" for label, unit in pairs],
        groups=[f"group {unit}" if by == "group" else "" for _, unit in pairs],
    )
    pixels = [f"pixels {unit}" if by == "pixels" else "" for _, unit in pairs]
    return manifest.assign(pixels=pixels, unit=[unit for _, unit in pairs])


def _whole(manifest: pd.DataFrame) -> bool:
    """Return whether each class is in each split."""
    return bool((manifest.groupby("label")["split"].nunique() == 3).all())


@pytest.mark.parametrize("by", ["group", "pixels"])
def test_split_finds_whatever_exists_and_names_the_cause(tmp_path: Path, by: str) -> None:
    """A first split, and one after growth, divide whatever brute force divides; nothing moves."""
    random_ = random.Random(by)  # noqa: S311 - no secret
    seen = dict.fromkeys(["divided", "groups", "memory", "divided after growth"], 0)
    for case in range(45):
        units, classes = _random_classes(random_)
        possible = _possible(units, classes, {})
        memory = SplitMemory(tmp_path / "none")
        before, notes = split.assign(_manifest(classes, by=by), **FRACTIONS, seed=case)
        memory.take_over(before)
        assert set(before.groupby("unit")["split"].nunique()) == {1}
        assert _whole(before) == possible, classes
        assert any("no assignment of these groups" in note for note in notes) != possible
        assert not any("never change" in note for note in notes)

        fixed = before.groupby("unit")["split"].first().map(SPLITS).to_dict()
        more = random_.randint(1, 2)
        for new in range(units, units + more):
            for members in classes:
                if random_.random() < 0.3:
                    members.append(new)
        classes.append(sorted(random_.sample(range(units + more), 3)))
        larger = _manifest(classes, by=by)
        try:
            after, notes = split.assign(larger, **FRACTIONS, seed=case, remembered=memory.table)
        except DataError as error:
            held_back = str(error)  # all groups of the new class were
        else:
            held_back = ""
        if held_back:
            assert "none to train on, because images never change their split" in held_back
            continue
        now = after.groupby("unit")["split"].first().map(SPLITS).to_dict()
        assert {unit: now[unit] for unit in fixed} == fixed
        grown = _possible(units + more, classes, fixed)
        assert _whole(after) == grown, (classes, fixed)
        by_memory = not grown and _possible(units + more, classes, {})
        assert not by_memory or any("never change their split" in note for note in notes)
        assert grown or by_memory or any("no assignment of these" in note for note in notes)
        seen["divided"] += possible
        seen["groups"] += not possible
        seen["memory"] += by_memory
        seen["divided after growth"] += grown
    assert min(seen.values()) >= 3, seen


def test_folds_find_whatever_exists() -> None:
    """Each class is in two folds whenever brute force puts it there, and in all where that goes."""
    random_ = random.Random(3)  # noqa: S311 - no secret
    for case in range(30):
        _, classes = _random_classes(random_)
        if case % 3 == 0:  # classes of two groups
            classes = [members[:2] for members in classes]
        manifest = _manifest(classes).assign(split="train")
        manifest["unit"] = manifest.groupby("unit").ngroup()
        ones = [sorted(set(own["unit"])) for _, own in manifest.groupby("label")]
        count = manifest["unit"].nunique()
        everywhere = len({*map(len, ones)} - {2}) and _possible(count, ones, {})
        in_two = _possible(count, ones, {}, parts=2)
        if count < 3 or not in_two:
            continue
        manifest["fold"] = folds_of(manifest, 2, case)
        assert set(manifest.groupby("unit")["fold"].nunique()) == {1}
        assert (manifest.groupby("label")["fold"].nunique() == 2).all()
        manifest["fold"] = folds_of(manifest, 3, case)
        least = manifest.groupby("label")["fold"].nunique().min()
        assert least >= (3 if everywhere else 2), ones


def test_folds_name_groups_of_several_classes_as_the_cause() -> None:
    """Three classes that share three groups in pairs cannot all be in both of two folds."""
    manifest = _manifest([[0, 1], [1, 2], [0, 2]]).assign(split="train")
    with pytest.raises(DataError, match="their groups also hold other classes"):
        folds_of(manifest, 2, 0)


def test_many_entangled_groups_are_divided_in_time() -> None:
    """100 patients and 100 classes of three of them each, of which an assignment is known."""
    random_ = random.Random(1)  # noqa: S311 - no secret
    known = [random_.randrange(3) for _ in range(100)]
    classes: Classes = []
    while len(classes) < 100:
        members = sorted(random_.sample(range(100), 3))
        if len({known[unit] for unit in members}) == 3:
            classes.append(members)
    began = time.process_time()
    manifest, notes = split.assign(_manifest(classes), **FRACTIONS, seed=0)
    assert _whole(manifest)
    assert notes == []
    assert time.process_time() - began < 20


def test_ordinary_groups_keep_their_shares() -> None:
    """Of 400 patients with two of 20 classes each, few move for the sake of a class."""
    random_ = random.Random(2)  # noqa: S311 - no secret
    classes: Classes = [[] for _ in range(20)]
    for patient in range(400):
        for k in random_.sample(range(20), 2):
            classes[k].append(patient)
    manifest, notes = split.assign(_manifest(classes), **FRACTIONS, seed=0)
    assert notes == []
    shares = manifest["split"].value_counts(normalize=True)
    assert shares["test"] == pytest.approx(0.15, abs=0.04)
    assert shares["validation"] == pytest.approx(0.15, abs=0.04)


def test_a_search_that_is_given_up_says_so_and_changes_nothing() -> None:
    """Twelve pigeons in eleven holes are more than a few moves decide: it is not known."""
    units = Units([list(range(9))] * 1, [frozenset()])
    impossible = Search(units, [Demand(tuple(range(10)), 10)], dict.fromkeys(range(9), 0))
    assert impossible.solve() is False
    pairs = [[a, b] for a in range(12) for b in range(a)]
    entangled = Units(pairs, [frozenset()] * len(pairs))
    demands = [Demand(tuple(range(11)), 2)] * len(pairs)
    search = Search(entangled, demands, dict.fromkeys(range(12), 0))
    assert search.solve(thorough=False) is None
    assert search.parts == dict.fromkeys(range(12), 0)
    assert np.unique(list(search.parts.values())).tolist() == [0]
