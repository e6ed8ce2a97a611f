"""What people change in a table with other programs, merged with what was answered meanwhile.

A program saves a table as it was opened, with what was changed in it; answers may have been given
since then. The file alone tells from which state of the journal it comes: that which needs the
fewest changes to become the file, and of several the last one. An edit is a difference from that
state. An answer that was given since is no edit, although the file does not have it, and stays.

If the file lacks nothing but the row of the newest answer, a person has removed that row.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.table_cells import plain_cell
from patchline.pipeline.labelling.answer import (
    Answer,
    labels_in,
    now,
)
from patchline.pipeline.labelling.standing import Event, Standing
from patchline.pipeline.labels.answer_columns import ANSWER_COLUMNS, LABEL, PATH, TABLE

Row = dict[str, str]
_LONGEST_FIELD = 1 << 24
_OTHER_CELLS = ("labeled_by", "labeled_at", "source")
"""They tell two answers with the same label apart."""


class Table(NamedTuple):
    """A table of answers as it is in the file."""

    columns: list[str]
    rows: list[Row]
    """Those with a path and a label."""
    sha256: str
    """Of the file."""


class Merged(NamedTuple):
    """What a saved table changes."""

    answers: list[Answer]
    """Labels that were changed or added."""
    removed: list[str]
    """Paths of rows that were removed."""
    newer: int
    """Answers that were given since the file was opened, and that stay."""
    outdated: list[str]
    """Paths of those of them whose rows were changed in the file, too."""


def read_table(file: Path) -> Table:
    """Return the columns and the rows of a table of answers.

    Raises:
        DataError: if it is another table, or cannot be read.
    """
    remedy = "Choose another file with --table, or move this one away."
    try:
        content = file.read_bytes()
        text = content.decode("utf-8-sig")
        csv.field_size_limit(_LONGEST_FIELD)
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table ({error}). {remedy}") from error
    columns = [plain_cell(cell.strip()) for cell in lines[0]] if lines else []
    missing = [name for name in (PATH, LABEL) if name not in columns]
    if missing and lines:
        raise DataError(
            f"{file} is another table: it has no column '{missing[0]}', and answers would replace "
            f"it. {remedy}"
        )
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if not any(cells):
            continue
        row = dict(zip(columns, map(plain_cell, cells), strict=False))
        row = {name: row.get(name, "") for name in (*ANSWER_COLUMNS, *columns)}
        try:
            labels_in(row[LABEL])
        except ValueError as error:
            raise DataError(
                f"Line {number} of {file} cannot be read: {error}. Repair it."
            ) from error
        if row[PATH] and row[LABEL].strip():
            rows.append(row)
    return Table(columns, rows, hashlib.sha256(content).hexdigest())


def merged(rows: Iterable[Row], events: Sequence[Event], current: Standing) -> Merged:
    """Return what a saved table changes in the state that its journal leads to.

    Args:
        rows: of the table; of several for one image, the last counts.
        events: of the journal.
        current: the state that they lead to.
    """
    told = {row[PATH]: row for row in rows}
    base = _base(told, events)
    since = [
        path
        for path in {*base.history, *current.history}
        if _label_answer(base, path) != _label_answer(current, path)
    ]
    if len(since) == 1 and since[0] not in told and _label_answer(base, since[0]) is None:
        base = current  # rather than older by one row, the file had that row, and it was removed
    answers, removed, outdated = [], [], []
    newer = 0
    for path in sorted({*told, *base.history, *current.history}):
        before, now_there = _label_answer(base, path), _label_answer(current, path)
        labels = labels_in(told[path][LABEL]) if path in told else None
        is_edit = labels != (_labels(before) if before else None)
        has_newer = before != now_there
        is_known = labels == (_labels(now_there) if now_there else None)
        newer += has_newer and not is_known
        if not is_edit or is_known:
            continue
        if has_newer:
            outdated.append(path)
        elif path in told:
            answers.append(_answer(told[path], before))
        else:
            removed.append(path)
    return Merged(answers, removed, newer, outdated)


def _base(told: Mapping[str, Row], events: Sequence[Event]) -> Standing:
    """Return the state that needs the fewest changes to become the table; the last one of equal."""
    state = Standing()
    differences = dict.fromkeys(told, 1)
    total = least = len(told)
    best = 0
    for number, event in enumerate(events, 1):
        state.apply(event)
        for path in paths_of(event):
            difference = _difference(told.get(path), _label_answer(state, path))
            total += difference - differences.get(path, 0)
            differences[path] = difference
        if total <= least:
            least, best = total, number
    base = Standing()
    for event in events[:best]:
        base.apply(event)
    return base


def paths_of(event: Event) -> list[str]:
    """Return the images that an event is about."""
    grouped = (path for paths in event.get("groups", {}).values() for path in paths)
    return [*(each["path"] for each in event.get("answers", ())), *event.get("paths", ()), *grouped]


def _difference(row: Row | None, answer: Answer | None) -> int:
    """Return how much a row is changed from an answer: its label, and what else tells both apart.

    A label that was changed back to that of an earlier answer has the name and the time of the
    later one: so it is as far from both, and the last state counts.
    """
    if row is None or answer is None:
        return int((row is None) != (answer is None))
    others = any(row[name] != getattr(answer, name) for name in _OTHER_CELLS)
    return int(labels_in(row[LABEL]) != _labels(answer)) + int(others)


def _label_answer(state: Standing, path: str) -> Answer | None:
    """Return the answer of an image that the table has a row for."""
    answer = state.answer(path)
    return answer if answer is not None and answer.verdict == "label" else None


def _labels(answer: Answer) -> tuple[str, ...]:
    return tuple(sorted(answer.labels))


def _answer(row: Row, before: Answer | None) -> Answer:
    """Return the answer that an edited row is: one of this moment, unless it has another time."""
    is_old = before is not None and row["labeled_at"] == before.labeled_at
    return Answer(
        row[PATH],
        "label",
        labels_in(row[LABEL]),
        row["labeled_by"],
        (not is_old and row["labeled_at"]) or now(),
        row["source"] or TABLE,
        row["suggestion"],
        _number(row["suggestion_probability"]),
    )


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
