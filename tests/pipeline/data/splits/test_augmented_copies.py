"""Augmented copies of one photograph in several splits, which only their names tell."""

from __future__ import annotations

import re

import pandas as pd

from patchline.pipeline.data.splits.leakage import GROUP_OF_COPIES, notes_on_augmented_copies

_HASHES = ("0f3a" * 8, "91bc" * 8, "Zk3mQ8tWn1LpV5xR7dY2")


def rows(*names: tuple[str, str]) -> pd.DataFrame:
    """Return images with their splits."""
    return pd.DataFrame(names, columns=["path", "split"])


def test_copies_in_two_splits_are_named_with_the_pattern_that_keeps_them_together() -> None:
    """Copies within one split are as they should be."""
    together = [(f"train/oak/a_jpg.rf.{each}.jpg", "train") for each in _HASHES]
    assert notes_on_augmented_copies(rows(*together, ("train/oak/b.jpg", "test"))) == []
    apart = [
        (f"train/ash/b_jpg.rf.{_HASHES[0]}.jpg", "train"),
        (f"train/ash/b_jpg.rf.{_HASHES[1]}.jpg", "test"),
        ("train/ash/c.rf.jpg", "train"),
        ("train/ash/c.rf.png", "test"),
    ]
    [note] = notes_on_augmented_copies(rows(*together, *apart))
    assert note.startswith("1 photograph appears in more than one split, so the test metrics are")
    assert "b_jpg" in note
    assert f"--data.group-pattern '{GROUP_OF_COPIES}'" in note
    found = [re.search(GROUP_OF_COPIES, path) for path, _ in (*together, *apart[:2])]
    assert [each and each[1] for each in found] == ["a_jpg"] * 3 + ["b_jpg"] * 2
