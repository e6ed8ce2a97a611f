"""The first sheet of an Excel workbook as columns of text, read by openpyxl."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchline.plugin_api import DataError, check_expansion
from patchline.plugins.data_sources.cell_text import joined, shown
from patchline.plugins.data_sources.csv_reading import csv_columns

_MOST_CELLS = 20_000_000
"""Of a table: with more, cells far beside it fill the memory."""


def workbook_columns(file: Path, header: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of the first sheet by name, and what a person should know.

    Args:
        file: ends in `.xlsx`.
        header: as for a CSV file.

    Raises:
        DataError: if openpyxl is missing, or the workbook is damaged, has several sheets with
            cells, or unpacks to much more than its own size.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise DataError(
            f"{file} is an Excel workbook, which needs openpyxl. Run pip install "
            "'patchline[xlsx]', or save the sheet as CSV."
        ) from error
    written = io.StringIO(newline="")
    try:
        with zipfile.ZipFile(file) as packed:
            check_expansion(file, sum(member.file_size for member in packed.infolist()))
        workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        sheets = {sheet.title: list(_sheet_rows(sheet)) for sheet in workbook.worksheets}
        workbook.close()
    except DataError:
        raise
    except Exception as error:  # whatever openpyxl meets in a damaged file
        reason = shown(" ".join(str(error).split())) or type(error).__name__
        raise DataError(
            f"{file} is damaged, or is not an Excel workbook ({reason}). Save it again."
        ) from error
    filled = [title for title, cells in sheets.items() if cells]
    if len(filled) > 1:
        raise DataError(
            f"{file} has several sheets with cells: {joined(filled)}. Save the one with the labels "
            "as a workbook of its own, or as CSV."
        )
    rows = sheets[filled[0]] if filled else []
    width = max(map(len, rows), default=0)
    if width * len(rows) > _MOST_CELLS:
        raise DataError(
            f"{file} has {len(rows):,} rows and a cell in column {width:,}, which are more than "
            f"{_MOST_CELLS:,} cells. Remove the cells beside the table, or save it as CSV."
        )
    table = csv.writer(written, delimiter="\t")
    table.writerows([*row, *[""] * (width - len(row))] for row in rows)
    written.seek(0)
    return csv_columns(file, written, header, delimiter="\t")


def _sheet_rows(sheet: Any) -> Iterator[list[str]]:
    """Yield the rows of a sheet that are not empty, without the empty cells at their ends."""
    sheet.reset_dimensions()  # what a file says about its size may be 16,384 columns of nothing
    for row in sheet.iter_rows(values_only=True):
        cells = [_text(cell) for cell in row]
        while cells and not cells[-1].strip():
            cells.pop()
        if cells:
            yield cells


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
