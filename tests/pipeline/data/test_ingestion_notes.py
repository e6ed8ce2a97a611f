"""Notes on data whose splits or groups leave little to learn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.ingestion_notes import dominant_groups, notes_on_held_out
from patchline.pipeline.inspection.class_findings import findings_on_classes
from patchline.pipeline.labels.label_sets import SINGLE_LABEL
from tests.pipeline.data.splits.made_tables import assigned, table


def rows(classes: int, groups: int, images: int = 1) -> pd.DataFrame:
    """Return usable images, each its own content, in the splits that a run makes."""
    units = np.arange(classes * groups).repeat(images).tolist()
    named = [f"g{unit}" * (images > 1) for unit in units]
    return assigned(table([f"c{unit // groups}" for unit in units], group=named))[0]


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (rows(40, 3), ["80 of 120 images are held out (40 for test and 40 for validation)"]),
        (rows(4, 3, 12), ["each class has one in every split, and half of them have at"]),
        (rows(40, 20), []),
    ],
)
def test_most_images_held_out_is_said(images: pd.DataFrame, words: list[str]) -> None:
    """Classes of three images or groups, not those of twenty, nor splits of the source."""
    notes = notes_on_held_out(images, {"test": 0.15, "validation": 0.15}, SINGLE_LABEL)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert notes_on_held_out(images, {}, SINGLE_LABEL) == []


def test_a_group_that_holds_most_images_of_several_classes_is_named() -> None:
    """It is a note of a run, and a finding of an inspection; a group of one class is neither."""
    images = rows(4, 40)
    most, label = images.index % 4 > 0, images["label"]
    images.loc[most & label.isin(["c0", "c2"]), "group"] = "video 7"
    images.loc[most & (label == "c3"), "group"] = "video 8"
    [found] = dominant_groups(images, SINGLE_LABEL)
    assert found.classes == ("c0", "c2")
    assert "group 'video 7' holds most images of 2 classes: c0 (75%), c2 (75%)" in found.sentence
    findings = findings_on_classes(images, pd.Series(data=True, index=images.index), (), 3)
    [finding] = [each for each in findings if each.kind == "imbalance"]
    assert (finding.severity, finding.classes) == ("warning", ("c0", "c2"))
