"""A table that somebody has written or edited, and what it says beyond a journal of answers.

A row is older than what the journal says of its image if it has the label of an earlier answer, or
the time of one that was answered or taken back since. Such a row changes nothing.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.data.labels.answer_columns import ANSWER_COLUMNS, LABEL, PATH, TABLE
from patchline.pipeline.data.labels.answers.answer import Answer, labels_in, now
from patchline.pipeline.data.labels.answers.journal import Standing
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.table_cells import plain_cell

Row = dict[str, str]
_LONGEST_FIELD = 1 << 24
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""As `answer.now` writes it; a spreadsheet may have changed it to another form."""
_FEWEST_NUMBERS = 3
"""Of a date."""
_DAYS, _DAY_0 = re.compile(r"\d{5}[.,]\d+"), dt.datetime(1899, 12, 30)  # noqa: DTZ001 - without zone
"""A spreadsheet's number in place of a time, and the day that it counts from."""


class Differences(NamedTuple):
    """What the rows of a table say beyond a journal."""

    answers: list[Answer]
    """Labels that were changed or added."""
    removed: list[str]
    """Paths of labelled images whose cell `label` is empty."""
    older: list[str]
    """Paths of rows that are older than what the journal says of the image."""


def read_table(
    file: Path, remedy: str = "Choose another file with --table, or move this one away."
) -> list[Row]:
    """Return the rows of a table of answers that have a path, and of each image the last one.

    Args:
        file: the table.
        remedy: what to do if it is another table.

    Raises:
        DataError: if it is another table, or cannot be read.
    """
    lines = _lines_of(file, remedy)
    columns = [plain_cell(cell.strip()) for cell in lines[0]] if lines else []
    missing = [name for name in (PATH, LABEL) if name not in columns]
    if missing and lines:
        raise DataError(f"{file} is another table: it has no column '{missing[0]}'. {remedy}")
    rows = {}
    for number, cells in enumerate(lines[1:], 2):
        row = dict(zip(columns, map(plain_cell, cells), strict=False))
        row = {name: row.get(name, "") for name in (*ANSWER_COLUMNS, *columns)}
        try:
            labels_in(row[LABEL])
        except ValueError as error:
            raise DataError(
                f"Line {number} of {file} cannot be read: {error}. Repair it."
            ) from error
        if row[PATH]:
            rows[row[PATH]] = row
    return list(rows.values())


def rows_with_cells(file: Path) -> int:
    """Return how many rows of a table are not empty, also those of one image, or without a path.

    Raises:
        DataError: if it cannot be read.
    """
    return sum(any(map(str.strip, cells)) for cells in _lines_of(file)[1:])


def _lines_of(file: Path, remedy: str = "Choose another file.") -> list[list[str]]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
        csv.field_size_limit(_LONGEST_FIELD)
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except FileNotFoundError:
        raise DataError(f"There is no file {file}. Check the path.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table ({error}). {remedy}") from error


def differences(rows: Iterable[Row], standing: Standing) -> Differences:
    """Return what rows say beyond what stands after the events of a journal."""
    found = Differences([], [], [])
    for row in rows:
        path, given = row[PATH], row["labeled_at"]
        history, changed_at = standing.history.get(path, []), standing.changed_at.get(path, "")
        before = history[-1] if history else None
        labels = labels_in(row[LABEL]) if row[LABEL].strip() else None
        if labels == (before.labels if before and before.verdict == "label" else None):
            continue
        time = _time_of(given, history)
        earlier = [(each.labels, time and each.labeled_at) for each in history[:-1]]
        if "" < time < changed_at or (labels, time) in earlier:
            found.older.append(path)
        elif labels is None:
            found.removed.append(path)
        else:
            found.answers.append(_answer(row, labels, before, time if time > changed_at else now()))
    return found


def _time_of(cell: str, history: Sequence[Answer]) -> str:
    """Return the time in a cell; empty if it tells none.

    A spreadsheet has its own form of times, often without seconds, or a number of days: such is the
    time of the last answer whose time has all numbers of the cell.
    """
    if _TIME.fullmatch(cell):
        return cell
    if _DAYS.fullmatch(cell):  # in five decimals, which are half a second apart from the time
        cell = f"{_DAY_0 + dt.timedelta(float(cell.replace(',', '.')), 0.5):%Y-%m-%d %H:%M:%S}"
    numbers = set(map(int, re.findall("[0-9]{1,9}", cell)))
    times = (each.labeled_at for each in history if len(numbers) >= _FEWEST_NUMBERS)
    return max((time for time in times if numbers <= _numbers_of(time)), default="")


def _numbers_of(time: str) -> set[int]:
    """Return the numbers with which a time may be written."""
    if not _TIME.fullmatch(time):
        return set()
    year, month, day, hour, minute, second = map(int, re.findall("[0-9]+", time))
    return {year, year % 100, month, day, hour, hour % 12 or 12, minute, second}


def _answer(row: Row, labels: tuple[str, ...], before: Answer | None, time: str) -> Answer:
    return Answer(
        row[PATH],
        "label",
        labels,
        row["labeled_by"],
        time,
        row["source"] or (before.source if before else TABLE),
        row["suggestion"],
        _number(row["suggestion_probability"]),
    )


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
