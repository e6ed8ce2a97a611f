"""Decide which image is in which split, by its content alone.

Each image gets a number in [0, 1) from the SHA-256 of the split seed and its own content (or its
group's name); the number decides. So a split does not change when images are added or renamed,
copies of one image never lie on both sides, and every class is divided in the same proportion up
to chance. Where chance leaves a class without an image in a split, the image whose number is
nearest to that split goes there.
"""

from __future__ import annotations

import hashlib
from collections import Counter

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
    units = _units(manifest[movable])
    numbers = {unit: _number(unit, seed) for unit in sorted(set(units))}
    splits = {unit: _split_of(number, wanted) for unit, number in numbers.items()}
    labels = manifest.loc[movable, "label"]
    for label in sorted(set(labels)):
        own = units[labels == label]
        ordered = sorted(set(own), key=numbers.__getitem__)
        _fill_empty_splits(splits, ordered, label, len(own), [*wanted, "train"])
    manifest.loc[movable, "split"] = units.map(splits)
    manifest.loc[~is_usable, "split"] = ""
    of_its = f"of its {len(units)} {'training ' if given else ''}images"
    notes = [
        f"the data has no {split} split: {int((manifest['split'] == split).sum())} {of_its} were "
        "taken for it"
        for split in wanted
    ]
    _check_training_images(manifest[is_usable])
    return manifest, notes


def _units(rows: pd.DataFrame) -> pd.Series[str]:
    """Return what decides for each row: its group, or its content. A unit is never divided."""
    return rows["group"].where(rows["group"] != "", rows["sha256"])


def _number(unit: str, seed: int) -> float:
    """Return a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{unit}".encode()).digest()[:7]) / 2**56


def _split_of(number: float, wanted: dict[str, float]) -> str:
    edge = 0.0
    for split, share in wanted.items():
        edge += share
        if number < edge:
            return split
    return "train"


def _fill_empty_splits(
    splits: dict[str, str], ordered: list[str], label: str, images: int, needed: list[str]
) -> None:
    """Move single units of one class, in place, until none of its splits is empty."""
    if len(ordered) < len(needed):
        usable = f"{images} usable image{'s' if images != 1 else ''}"
        together = f" of {len(ordered)} group or content" if len(ordered) < images else ""
        raise DataError(
            f"Class '{label}' has {usable}{together}, "
            f"but {len(needed)} splits ({', '.join(reversed(needed))}) need one each. Add images "
            "to the class, or remove it."
        )
    for split in needed:
        counts = Counter(splits[unit] for unit in ordered)
        if not counts[split]:
            candidates = ordered[::-1] if split == "train" else ordered
            splits[next(unit for unit in candidates if counts[splits[unit]] > 1)] = split


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
