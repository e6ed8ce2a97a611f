"""CSV and TSV files as columns of text, with or without a header.

Many files have no header, and reading their first line as one would lose an image. The first line
is data if a cell names an image: by its suffix, or because there is such a file. It may be data if
a cell occurs again below it; whether it is must then be said.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TextIO

from patchline.plugin_api import IMAGE_SUFFIXES, DataError, are_answers, plain_cell
from patchline.plugins.data_sources.cell_text import shown

_DELIMITERS = (",", ";", "\t", "|")
_MOST_FIELD_BYTES = 1 << 27
_COMPARED = 20
"""Lines that tell the delimiter."""
_ROWS_LOOKED_AT = 1000
"""Rows in which the cells of the first line are searched for."""


def csv_columns(
    file: Path, opened: TextIO, header: str, delimiter: str | None = None
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of a table by name, and what a person should know.

    Args:
        file: the table; its suffix `.tsv` says that tabs separate the columns.
        opened: its text.
        delimiter: between the columns; by default told by the first lines.
        header: `true` or `false` says whether the first line names the columns; `auto` tells.

    Raises:
        DataError: if a line is damaged, or the first one may be a header or not.
    """
    csv.field_size_limit(_MOST_FIELD_BYTES)
    reader = csv.reader(
        opened, delimiter=delimiter or _delimiter(file, opened), skipinitialspace=True
    )
    try:
        first = next((row for row in reader if any(row)), [])
        if not first:
            raise DataError(f"{file} is empty. Write a header and one row for each image.")
        rows = list(_rows(file, reader, len(first)))
    except csv.Error as error:
        raise DataError(
            f"{file} cannot be read as a table ({error}, line {reader.line_num}). Repair the line."
        ) from error
    notes = []
    first = [plain_cell(cell.strip()) for cell in first]
    if header == "true" or (header == "auto" and _is_header(file, first, rows)):
        _check_names(file, first)
        names = first
        repeated = [row for row in rows if [cell.strip() for cell in row] == first]
        if repeated:  # files that were put together
            rows = [row for row in rows if [cell.strip() for cell in row] != first]
            lines = (
                "a line that repeats" if len(repeated) == 1 else f"{len(repeated):,} lines repeat"
            )
            notes.append(f"{file.name}: {lines} the header, and skipped")
    else:
        names = [f"column_{number}" for number in range(1, len(first) + 1)]
        rows.insert(0, first)
        if header == "auto":
            notes.append(
                f"{file.name} has no header: its first line names an image; the columns are called "
                f"{names[0]} to {names[-1]} (--data.header true reads it as a header)"
            )
    cells = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: list(column) for name, column in zip(names, cells, strict=True)}, notes


def _delimiter(file: Path, opened: TextIO) -> str:
    """Return what separates the columns: most frequent in the first line, in all lines alike.

    A cell of several labels, `1.jpg,cat|dog|fox`, may hold more of another character.
    """
    if file.suffix.lower() == ".tsv":
        return "\t"
    lines = list(islice((line for line in opened if line.strip()), _COMPARED))
    opened.seek(0)
    start = lines[0] if lines else ""

    def rank(delimiter: str) -> tuple[bool, int]:
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        return len(widths) == 1 and widths != {1}, start.count(delimiter)

    try:
        return max(_DELIMITERS, key=rank)
    except csv.Error:  # a quoted cell goes beyond these lines, or is damaged
        return max(_DELIMITERS, key=start.count)


def _rows(file: Path, reader: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    """Yield the rows that are not blank; raise `DataError` for one of another length."""
    for row in reader:
        if not row or (row == [""] and width > 1):  # a blank line
            continue
        if len(row) != width:
            raise DataError(
                f"Line {reader.line_num} of {file} has {len(row)} values, but the first one has "  # type: ignore[attr-defined]
                f"{width} columns. Repair the line; a cell that holds the delimiter needs quotes."
            )
        yield list(map(plain_cell, row))


def _is_header(file: Path, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line is a header.

    Raises:
        DataError: if it may be one or not.
    """
    if are_answers(first):
        return True
    if any(_names_an_image(file, cell) for cell in first):
        return False
    if not rows:
        return True
    for place, cell in enumerate(first):
        again = sum(
            row[place].strip() == cell for row in rows[:_ROWS_LOOKED_AT] if list(row) != first
        )
        if cell and again:
            raise DataError(
                f"The first line of {file} may be a header or the first image: '{shown(cell)}' "
                f"occurs again below it. Set --data.header false if it is an image, true if it "
                "names the columns."
            )
    return True


def _names_an_image(file: Path, cell: str) -> bool:
    if PurePosixPath(cell.replace("\\", "/")).suffix.lower() in IMAGE_SUFFIXES:
        return True
    try:
        return bool(cell) and "/" in cell and (file.parent / cell).is_file()
    except (OSError, ValueError):  # too long, or no name of this system
        return False


def _check_names(file: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{file} has two columns named '{shown(name)}'. Rename one of them.")
