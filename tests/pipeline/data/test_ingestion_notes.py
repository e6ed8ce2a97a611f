"""Notes on data whose splits or groups leave little to learn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.ingestion_notes import dominant_groups, notes_on_held_out
from patchline.pipeline.data.splits.split import assign
from patchline.pipeline.inspection.class_findings import findings_on_classes
from patchline.pipeline.labels.label_sets import SINGLE_LABEL

SHARES = {"test": 0.15, "validation": 0.15}


def rows(classes: int, groups: int, images: int = 1, *, named: bool = False) -> pd.DataFrame:
    """Return usable images, each its own content, in the splits that a run makes."""
    units = np.arange(classes * groups).repeat(images)
    numbers = pd.Series(np.arange(len(units)), dtype=str)
    table = pd.DataFrame({"path": numbers, "sha256": numbers, "pixels": "", "status": "ok"})
    table["label"] = [f"c{unit // groups}" for unit in units]
    table["group"] = [f"g{unit}" for unit in units] if named else ""
    table["split"] = ""
    assigned, _ = assign(table, validation_fraction=0.15, test_fraction=0.15, seed=0)
    return assigned


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rows(40, 3), "80 of 120 images are held out (40 for test and 40 for validation)"),
        (rows(4, 3, 12, named=True), "each class has one in every split, and half of them have at"),
        (rows(4, 100), None),
        (rows(40, 20), None),
    ],
)
def test_most_images_held_out_is_said(table: pd.DataFrame, words: str | None) -> None:
    """Classes of three images or groups, not those of a hundred."""
    notes = notes_on_held_out(table, SHARES, SINGLE_LABEL)
    assert [words in note for note in notes if words] == [True] * (words is not None)
    assert bool(notes) is (words is not None)


def test_splits_that_the_source_gives_are_no_surprise() -> None:
    """Nothing was asked for."""
    assert notes_on_held_out(rows(40, 3), {}, SINGLE_LABEL) == []


def test_a_group_that_holds_most_images_of_several_classes_is_named() -> None:
    """It is a note of a run, and a finding of an inspection; a group of one class is neither."""
    table = rows(4, 40)
    table.loc[table["label"].isin(["c0", "c2"]) & (table.index % 4 > 0), "group"] = "video 7"
    table.loc[(table["label"] == "c3") & (table.index % 4 > 0), "group"] = "video 8"
    [found] = dominant_groups(table, SINGLE_LABEL)
    assert found.classes == ("c0", "c2")
    assert "group 'video 7' holds most images of 2 classes: c0 (75%), c2 (75%)" in found.sentence
    findings = findings_on_classes(table, pd.Series(data=True, index=table.index), (), 3)
    [finding] = [each for each in findings if each.kind == "imbalance"]
    assert (finding.severity, finding.classes) == ("warning", ("c0", "c2"))
    assert "Group 'video 7'" in finding.summary
