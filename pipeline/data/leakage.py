"""Leakage: images and groups in more than one split, which make the test metrics optimistic."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.data.manifest import examples
from pipeline.data.same_images import content_numbers


def notes_on_leakage(rows: pd.DataFrame) -> list[str]:
    """Name the images, by file or pixels, and the groups that lie in more than one split.

    Args:
        rows: the usable images of a manifest, with their splits.
    """
    images = _in_several_splits(rows, content_numbers(rows)[0])
    grouped = rows[rows["group"] != ""]
    groups = grouped.loc[_in_several_splits(grouped, grouped["group"]), "group"]
    count = int(content_numbers(rows[images])[0].nunique()) if images.any() else 0
    return [
        *_note(count, "image", list(rows.loc[images, "path"])),
        *_note(int(groups.nunique()), "group", sorted(set(groups))),
    ]


def _note(count: int, kind: str, names: list[str]) -> list[str]:
    if not count:
        return []
    verb = " lies" if count == 1 else "s lie"
    where = f"{count} {kind}{verb} in more than one split, so the test metrics are optimistic"
    return [f"{where}: {examples(names)}"]


def _in_several_splits(rows: pd.DataFrame, by: pd.Series[Any]) -> pd.Series[bool]:
    return rows["split"].groupby(by).transform("nunique") > 1
