"""The rows of a table as images: with labels, splits and groups, or left out with the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.plugin_api import (
    LeftOutFile,
    ListedImage,
    SourceContext,
    Split,
    read_label_cells,
)
from patchline.plugins.data_sources.table_columns import Columns, splits_of
from patchline.plugins.data_sources.table_reading import Table

_MOST_COLUMNS = 50
"""Of the columns that are kept beside the image and its label."""
_NO_LABEL = "has no label"
NO_IMAGE = "the row names no image"


class Places(NamedTuple):
    """Where the images of all rows are."""

    root: Path
    paths: list[str | None]
    """None for a row without an image."""
    shown: list[str]
    """What the table says about each row's image."""
    missing: str
    """Why a row has no image."""
    notes: list[str]


def own_columns(table: Table, columns: Columns, rows: list[int]) -> dict[str, list[str]]:
    """Return the other columns of the table, for the rows whose images are listed."""
    others = [name for name in table.names if name not in {*columns[:4], *table.embedded}]
    found = {}
    for name in others[:_MOST_COLUMNS]:
        values = table.column(name)
        found[name] = [values[row] for row in rows]
    return found


class ListedRows(NamedTuple):
    """The rows of a table as images."""

    images: list[ListedImage]
    left_out: list[LeftOutFile]
    """What is left out, with the reason."""
    rows: list[int]
    """The row of each image."""
    notes: list[str]
    """What the labels are read as, where that is not what is written."""


def listed_rows(
    table: Table, columns: Columns, places: Places, context: SourceContext
) -> ListedRows:
    """Return the images of a table, with their labels, splits and groups."""
    labels, notes = [""] * len(places.paths), list[str]()
    if columns.label:
        labels, notes = _labels(table, columns.label, context.rules.no_label)
    splits = splits_of(table, columns.split, len(labels))
    groups: Sequence[str] = table.column(columns.group) if columns.group else [""] * len(labels)
    images: dict[str, ListedImage] = {}
    first_rows: dict[str, int] = {}
    left_out: dict[str, LeftOutFile] = {}
    for row, path in enumerate(places.paths):
        named = places.shown[row].strip()
        shown = path or named or f"row {row + 1}"
        if path is None or (context.needs_labels and not labels[row]):
            reason = _NO_LABEL if path else places.missing if named else NO_IMAGE
            left_out[shown] = LeftOutFile(shown, reason, "damaged" if path is None else "foreign")
            continue
        image = ListedImage(path, labels[row], splits[row], groups[row] or None)
        first_rows.setdefault(path, row)
        if images.setdefault(path, image) != image:
            left_out[path] = LeftOutFile(path, _contradiction(images[path], image))
    left_out = {path: each for path, each in left_out.items() if not _is_kept(each, images)}
    kept = [path for path in images if path not in left_out]
    rows = [first_rows[path] for path in kept]
    return ListedRows([images[path] for path in kept], list(left_out.values()), rows, notes)


def _is_kept(left_out: LeftOutFile, images: dict[str, ListedImage]) -> bool:
    """Return whether another row gives the image its label."""
    return left_out.reason == _NO_LABEL and left_out.path in images


def _contradiction(one: ListedImage, other: ListedImage) -> str:
    pairs: list[tuple[str, str | Split | None, str | Split | None]] = [
        ("labels", one.label, other.label),
        ("splits", one.split, other.split),
        ("groups", one.group, other.group),
    ]
    what, first, second = next(each for each in pairs if each[1] != each[2])
    return f"has two {what} in the table, {first or 'none'} and {second or 'none'}"


def _labels(table: Table, column: str, no_label: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the label of each row, and notes; the table may name the classes of numbers."""
    names = table.class_names.get(column)
    if names is None:
        return read_label_cells(table.column(column), column, no_label)
    known = {str(number): name for number, name in enumerate(names)}
    return [known.get(value.strip(), "") for value in table.column(column)], []
