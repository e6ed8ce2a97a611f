"""The labels of a table's rows: of one column, or of columns of 0 and 1."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from patchline.plugin_api import DataError, SourceContext, read_set_cells
from patchline.plugins.data_sources.cell_text import shown
from patchline.plugins.data_sources.table_columns import (
    ABSENT,
    PRESENT,
    UNCERTAIN,
    Columns,
    is_uncertain,
)
from patchline.plugins.data_sources.table_reading import Table

_NAMED = 3


class RowLabels(NamedTuple):
    """The labels of all rows."""

    sets: list[tuple[str, ...]]
    """Of each row, sorted."""
    how: str
    """How several labels of a row are written, in words; empty if a row has at most one."""
    notes: list[str]


def row_labels(table: Table, columns: Columns, context: SourceContext) -> RowLabels:
    """Return the labels of each row.

    Raises:
        DataError: if a cell may be several labels or not, or is not 0 or 1 where it has to be.
    """
    if columns.labels:
        return _of_zero_one(table, columns.labels)
    if not columns.label:
        return RowLabels([()] * len(table.column(columns.image)), "", [])
    given = table.class_names.get(columns.label)
    names = None if given is None else {str(number): name for number, name in enumerate(given)}
    cells = table.column(columns.label)
    column, file = shown(columns.label), str(table.file)
    read = read_set_cells(cells, column, context.rules, context.task, names, table=file)
    how = f"column '{shown(columns.label)}' holds several labels in a cell, {read.several}"
    return RowLabels(read.sets, how if read.several else "", read.notes)


def _of_zero_one(table: Table, names: tuple[str, ...]) -> RowLabels:
    labels: list[list[str]] = []
    empty, all_values = 0, set[str]()
    for name in names:
        column = table.column(name)
        labels += [[] for _ in range(len(column) - len(labels))]
        values = Counter(value.strip().casefold() for value in column)
        all_values |= values.keys()
        _check_zero_one(table, name, values, all_values)
        empty += values[""]
        label = name.strip()
        for row, value in enumerate(column):
            if value.strip().casefold() in PRESENT:
                labels[row].append(label)
    some = ", ".join(map(shown, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
    notes = []
    if empty:
        notes.append(
            f"{empty:,} cell{' is' if empty == 1 else 's are'} empty in the columns of 0 and 1, "
            "and read as 0"
        )
    how = f"{len(names):,} columns of 0 and 1 each stand for a label ({some})"
    return RowLabels([tuple(sorted(each)) for each in labels], how, notes)


def _check_zero_one(table: Table, name: str, values: Counter[str], all_values: set[str]) -> None:
    odd = sorted(values.keys() - ABSENT - PRESENT - {""})
    if odd:
        raise DataError(
            f"Column '{shown(name)}' of {table.file} holds '{shown(odd[0])}', but a column that "
            "stands for a label holds 1 for the images that have it and 0 for the others. Repair "
            "it, or leave it out of --data.label-columns."
        )
    if is_uncertain(all_values):
        raise DataError(
            f"Column '{shown(name)}' of {table.file}, or one before it, holds {UNCERTAIN}, so that "
            "it is not clear which images do not have the label. Write 1 for those that have it "
            "and 0 for the others."
        )
