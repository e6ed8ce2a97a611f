"""Leakage: images and groups in more than one split, which make the test metrics optimistic.

Where the data itself gives the splits, leakage stops a run unless it is accepted. The splits that
Patchline makes keep copies and groups together; only images that were assigned before they became
copies or members of a group can leak, and these are named and never stop a run.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from patchline.pipeline.data.manifests.same_images import content_numbers, with_copies
from patchline.pipeline.data.splits.split import movable_rows
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import by_number, few_names

_AUGMENTED = r"^(.+)\.rf\.[0-9A-Za-z]{16,}\.[^.]+$"
GROUP_OF_COPIES = r"([^/]+)\.rf\.[^/]+$"
"""A `data.group_pattern` for such names."""

_PATIENT = r"((?i:patient|subject)_?\d+)"


def check_leakage(manifest: pd.DataFrame) -> None:
    """Refuse data whose own splits share images or groups.

    Args:
        manifest: a manifest with only the splits that the source gives.

    Raises:
        DataError: with the number of shared images and a few of them.
    """
    usable = manifest[manifest["status"] == "ok"]
    notes = notes_on_leakage(usable.assign(split=find_given_splits(manifest)))
    if notes:
        raise DataError(
            f"{notes[0]}. `patchline data inspect` lists all of them. Exclude the copies with "
            "--data.exclude, or accept them with --data.accept leakage."
        )


def find_given_splits(manifest: pd.DataFrame) -> pd.Series[str]:
    """Return the split that the source fixes for each usable image; `train` if it fixes none."""
    usable = manifest[manifest["status"] == "ok"]
    return usable["split"].mask(movable_rows(manifest)[usable.index], "train")


def notes_on_leakage(rows: pd.DataFrame) -> list[str]:
    """Name the images, by file or pixels, and the groups that lie in more than one split.

    Args:
        rows: the usable images of a manifest, with their splits.
    """
    copies = rows[with_copies(rows)]
    contents = content_numbers(copies)[0]
    images = _in_several_splits(copies, contents)
    groups = rows.loc[rows["group"] != "", "group"]
    return [
        *_note(int(contents[images].nunique()), "image", list(copies.loc[images, "path"])),
        *_torn(rows, groups, "group"),
    ]


def notes_on_augmented_copies(rows: pd.DataFrame) -> list[str]:
    """Say that augmented copies of one photograph lie in more than one split.

    Roboflow writes them before training, and names each after its photograph: `a_jpg.rf.HASH.jpg`.
    Their pixels differ, and no search for near duplicates finds all of them.

    Args:
        rows: the usable images of a manifest, with their splits.
    """
    copies = "the names are those of augmented copies, which --data.group-pattern"
    remedy = f"{copies} '{GROUP_OF_COPIES}' keeps in one split"
    return [
        f"{note}; {remedy}" for note in _torn(rows, find_augmented_photographs(rows), "photograph")
    ]


def notes_on_patients(rows: pd.DataFrame) -> list[str]:
    """Say that images of one patient, whom their paths name, lie in more than one split.

    Args:
        rows: the usable images of a manifest, with their splits.
    """
    patients = rows["path"].str.extract(_PATIENT, expand=False).dropna()
    labels = rows.loc[patients.index, "label"]
    patients = patients[[name not in label for name, label in zip(patients, labels, strict=True)]]
    remedy = f"--data.group-pattern '{_PATIENT}' keeps the images of each in one split"
    notes = _torn(rows, patients, "patient")
    return [f"{note}; their paths name them, and {remedy}" for note in notes]


def find_augmented_photographs(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the photographs that images are named after as augmented copies; others are left out.

    Args:
        rows: the images' rows of a manifest.
    """
    names = rows["path"].str.rpartition("/")[2]
    return names.str.extract(_AUGMENTED, expand=False).dropna()


def _torn(rows: pd.DataFrame, names: pd.Series[str], kind: str) -> list[str]:
    """Say which of the names of some images are those of images in several splits."""
    several = names[_in_several_splits(rows.loc[names.index], names)]
    return _note(int(several.nunique()), kind, sorted(set(several)))


def _note(count: int, kind: str, names: list[str]) -> list[str]:
    if not count:
        return []
    verb = by_number(count, " appears", "s appear")
    where = f"{count} {kind}{verb} in more than one split, so the test metrics are optimistic"
    return [f"{where}: {few_names(names, 3)}"]


def _in_several_splits(rows: pd.DataFrame, by: pd.Series[Any]) -> pd.Series[bool]:
    return rows["split"].groupby(by).transform("nunique") > 1
