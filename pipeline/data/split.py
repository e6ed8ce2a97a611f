"""Decide which image is in which split, by its content alone.

Each image gets a number in [0, 1) from the SHA-256 of the split seed and its own content (or its
group's name); the number decides. So a split does not change when images are added or renamed,
copies of one image never lie on both sides, and every class is divided in the same proportion up
to chance. Where chance leaves a class without an image in a split, the image whose number is
nearest to that split goes there.
"""

from __future__ import annotations

import hashlib

import pandas as pd

from pipeline.errors import DataError

SPLITS = ("train", "validation", "test")


def assign(
    manifest: pd.DataFrame,
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with every usable image in a split, and notes on what was carved.

    Splits that the source gives are kept. A missing test or validation split is carved from train.

    Raises:
        DataError: if a class has too few images for the splits.
    """
    manifest = manifest.copy()
    is_usable = manifest["status"] == "ok"
    given = set(manifest.loc[is_usable, "split"]) - {""}
    movable = is_usable & manifest["split"].isin(["", "train"])
    fractions = {"test": test_fraction, "validation": validation_fraction}
    wanted = {split: share for split, share in fractions.items() if split not in given}
    notes = [
        f"the data has no {split} split: about {share:.0%} of its "
        f"{'training ' if given else ''}images were taken for it"
        for split, share in wanted.items()
    ]
    numbers = _numbers(manifest[movable], seed)
    splits = numbers.map(lambda number: _split_of(number, wanted))
    labels = manifest.loc[movable, "label"]
    for label in sorted(set(labels)):
        _fill_empty_splits(splits, numbers[labels == label], label, list(wanted))
    manifest.loc[movable, "split"] = splits
    manifest.loc[~is_usable, "split"] = ""
    _check_training_images(manifest[is_usable])
    return manifest, notes


def _numbers(rows: pd.DataFrame, seed: int) -> pd.Series[float]:
    """Return a number in [0, 1) for each row, from its group or its content."""
    keys = rows["group"].where(rows["group"] != "", rows["sha256"])
    return keys.map(
        lambda key: int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:7]) / 2**56
    ).astype(float)


def _split_of(number: float, wanted: dict[str, float]) -> str:
    edge = 0.0
    for split, share in wanted.items():
        edge += share
        if number < edge:
            return split
    return "train"


def _fill_empty_splits(
    splits: pd.Series[str], numbers: pd.Series[float], label: str, wanted: list[str]
) -> None:
    """Move single images of one class, in place, until none of its splits is empty."""
    needed = [*wanted, "train"]
    if len(numbers) < len(needed):
        raise DataError(
            f"Class '{label}' has {len(numbers)} usable image{'s' if len(numbers) != 1 else ''}, "
            f"but {len(needed)} splits ({', '.join(reversed(needed))}) need one each. Add images "
            "to the class, or remove it."
        )
    ordered = numbers.sort_values(kind="stable").index
    for position, split in enumerate(needed):
        own = splits.loc[ordered]
        if (own == split).any():
            continue
        counts = own.value_counts()
        candidates = ordered if position == 0 else ordered[::-1] if split == "train" else ordered
        spare = next(i for i in candidates if counts[splits.loc[i]] > 1)
        splits.loc[spare] = split


def _check_training_images(rows: pd.DataFrame) -> None:
    trained = set(rows.loc[rows["split"] == "train", "label"])
    untrained = sorted(set(rows["label"]) - trained)
    if untrained:
        raise DataError(
            f"Class '{untrained[0]}' has images in {_where(rows, untrained[0])}, but none to train "
            "on. Add some to its training folder, or remove the class."
        )


def _where(rows: pd.DataFrame, label: str) -> str:
    return " and ".join(sorted(set(rows.loc[rows["label"] == label, "split"])))
