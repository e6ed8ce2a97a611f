"""Files of tables as columns of text: CSV, TSV and Excel.

Many files have no header, and reading their first line as one would lose an image. The first line
is data if a cell names an image: by its suffix, or because there is such a file. It may be data if
a cell occurs again below it; whether it is must then be said.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from patchline.plugin_api import IMAGE_SUFFIXES, DataError, are_answers, check_expansion, plain_cell

_LONGEST_SHOWN = 80
_NAMED = 3


def format_cell(value: str) -> str:
    """Return a cell or the name of a column for a message: in one line, and not long."""
    short = value if len(value) <= _LONGEST_SHOWN else f"{value[: _LONGEST_SHOWN - 1]}…"
    if short.isprintable():
        return short
    escaped = (each.encode("unicode_escape", "surrogatepass").decode() for each in short)
    return "".join(
        each if each.isprintable() else code for each, code in zip(short, escaped, strict=True)
    )


def first_few(names: Sequence[str], most: int = 3, joint: str = ", ") -> str:
    """Return the first names, and how many more there are: `a, b, c and 4 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return joint.join(names[:most]) + more


def join_names(names: Sequence[str]) -> str:
    """Return some names for a message: `'cat', 'dog' and 'fox'`, or `none`."""
    quoted = [f"'{format_cell(name)}'" for name in names]
    if len(names) > _NAMED:
        return first_few(quoted)
    if len(quoted) > 1:
        return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    return quoted[0] if quoted else "none"


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
        delimiter: the character between the columns; by default told by the first lines.
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
        for name in first:
            if first.count(name) > 1:
                raise DataError(
                    f"{file} has two columns named '{format_cell(name)}'. Rename one of them."
                )
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
                f"The first line of {file} may be a header or the first image: "
                f"'{format_cell(cell)}' occurs again below it. Set --data.header false if it is an "
                "image, true if it names the columns."
            )
    return True


def _names_an_image(file: Path, cell: str) -> bool:
    if PurePosixPath(cell.replace("\\", "/")).suffix.lower() in IMAGE_SUFFIXES:
        return True
    try:
        return bool(cell) and "/" in cell and (file.parent / cell).is_file()
    except (OSError, ValueError):  # too long, or no name of this system
        return False


_UTF_8 = "utf-8-sig"
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like the mark of UTF-16
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BYTES_LOOKED_AT = 4096
_CONTEXT = 12
_GUESS = "cp1252"


@contextmanager
def open_text(file: Path, encoding: str | None) -> Iterator[TextIO]:
    """Open a text file, and turn what fails while it is read into one sentence.

    Args:
        file: a table, for example.
        encoding: `data.encoding`; None for UTF-8, or what a byte-order mark says.

    Raises:
        DataError: if it cannot be opened, or is not text in its encoding.
    """
    try:
        with file.open("rb") as binary:
            start = binary.read(_BYTES_LOOKED_AT)
        marked = (name for mark, name in _MARKS if start.startswith(mark))
        used = encoding or next(marked, _UTF_8)
        if encoding is None and used == _UTF_8 and b"\0" in start:
            raise DataError(
                f"{file} holds zero bytes, as UTF-16 does without a byte-order mark. Set "
                "--data.encoding utf-16-le (or utf-16-be), or save it as UTF-8."
            )
        if encoding is not None and codecs.lookup(encoding).name == "utf-8":
            used = _UTF_8
        with file.open(encoding=used, newline="") as opened:
            yield opened
    except UnicodeError as error:
        raise DataError(_not_text(file, encoding, error)) from error
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def _not_text(file: Path, encoding: str | None, error: UnicodeError) -> str:
    if encoding is not None:
        return (
            f"data.encoding is {encoding}, but {file} is not text in it "
            f"({format_cell(str(error))}). Set another --data.encoding, such as utf-8, utf-16, "
            "cp1252 or latin-1."
        )
    if not isinstance(error, UnicodeDecodeError):
        return f"{file} is not text ({format_cell(str(error))}). Save it as UTF-8."
    around = error.object[max(0, error.start - _CONTEXT) : error.start + _CONTEXT]
    guess = format_cell(" ".join(around.decode(_GUESS, "replace").split()))
    return (
        f"{file} is not UTF-8 text ({error.reason} at byte {error.start}; in {_GUESS} it reads "
        f"'{guess}'). Set --data.encoding to its encoding, such as {_GUESS}, latin-1 or cp932, or "
        "save it as UTF-8."
    )


_MOST_CELLS = 20_000_000
"""Of a table: with more, cells far beside it fill the memory."""


def workbook_columns(file: Path, header: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of the first sheet by name, and what a person should know.

    Args:
        file: the workbook, whose name ends in `.xlsx`.
        header: `true`, `false` or `auto`, as for a CSV file.

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
        reason = format_cell(" ".join(str(error).split())) or type(error).__name__
        raise DataError(
            f"{file} is damaged, or is not an Excel workbook ({reason}). Save it again."
        ) from error
    filled = [title for title, cells in sheets.items() if cells]
    if len(filled) > 1:
        raise DataError(
            f"{file} has several sheets with cells: {join_names(filled)}. Save the one with the "
            "labels as a workbook of its own, or as CSV."
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
        cells = [cell_text(cell) for cell in row]
        while cells and not cells[-1].strip():
            cells.pop()
        if cells:
            yield cells


def cell_text(value: Any) -> str:
    """Return a value as text; a missing one is the empty text, a whole number has no fraction."""
    if value is None:
        return ""
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 - not a number
            return ""
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, list | dict):
        try:
            return json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return str(type(value))
    return value if isinstance(value, str) else str(value)
