"""The cells of a label column: what counts as no label, and numbers that are written differently.

Labels are text, so `001` and `NA` are classes. But programs write a missing value as `nan`, and the
same number as `0` and `0.0`, which no one means as two classes. Whether `1.1` and `1.10` are two,
and whether a date was typed as one, only a person knows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.folder_walk import DEFAULT

NO_LABEL = ("nan", "-nan", "<na>", "nat", "null", "#n/a", "#na", "?")
"""Cells that mean that there is no label, beside empty ones, in lower case."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_MONTH = r"(?:jan|feb|mar|m\u00e4r|apr|may|mai|jun|jul|aug|sept?|oct|okt|nov|dec|dez)"
_DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?|\d{1,2}:\d{2}:\d{2}|\d{1,2}/\d{1,2}/\d{4}"
    rf"|\d{{1,2}}[-. ]+{_MONTH}|{_MONTH}[-. ]+\d{{1,4}}",
    re.IGNORECASE,
)
"""What spreadsheets write for a text such as `1-2` or `SEPT2`."""
_LONGEST = 40


class LabelCells(NamedTuple):
    """The labels of a column."""

    labels: list[str]
    """The label of each row; empty where there is none."""
    notes: list[str]
    """What was read in another way than it is written."""


def read_label_cells(
    cells: Sequence[str],
    column: str,
    no_label: Collection[str] = (DEFAULT,),
    *,
    literal: bool = False,
    merge: bool = False,
) -> LabelCells:
    """Return the labels in the cells of a column.

    Args:
        cells: the cells of all rows.
        column: the name of the column, for the notes.
        no_label: cells that mean that there is no label, in any case; `default` stands for
            `NO_LABEL`.
        literal: whether numbers and dates are labels as they are written.
        merge: whether the same number is one label, however it is written.

    Raises:
        DataError: if there are dates, or the same number is written in two ways that may be meant.
    """
    words = [*no_label, *(NO_LABEL if DEFAULT in no_label else ())]
    missing = {each.strip().casefold() for each in words if each != DEFAULT}
    counts = Counter(cells)
    labels = {cell: cell.strip() for cell in counts}
    dropped = [cell for cell, label in labels.items() if label and label.casefold() in missing]
    labels |= dict.fromkeys(dropped, "")
    notes = []
    if dropped:
        count = sum(counts[cell] for cell in dropped)
        written = ", ".join(sorted({f"'{cell.strip()}'" for cell in dropped}))
        rows = "row has" if count == 1 else "rows have"
        notes.append(
            f"{count:,} {rows} no label in column '{column}': {written} "
            f"count{'s' if len(dropped) == 1 else ''} as empty (data.no_label)"
        )
    used = Counter({label: 0 for label in labels.values() if label})
    for cell, label in labels.items():
        if label:
            used[label] += counts[cell]
    if not literal:
        _check_dates(used, column)
    spelled = {} if literal else _one_spelling(used, column, merge=merge)
    if spelled:
        examples = (f"'{other}' is read as '{label}'" for other, label in spelled.items())
        notes.append(
            f"column '{column}' holds numbers, and the same number is one class: "
            f"{few_names(examples, 3)}"
        )
    final = {cell: spelled.get(label, label) for cell, label in labels.items()}
    return LabelCells([final[cell] for cell in cells], notes)


def number_in(label: str) -> float | None:
    """Return the number that a label is written as; None for any other text."""
    if len(label) > _LONGEST or not label.isascii() or not _NUMBER.fullmatch(label):
        return None
    value = float(label)
    return value if math.isfinite(value) else None


def _check_dates(counts: Counter[str], column: str) -> None:
    dates = [label for label in counts if _DATE.fullmatch(label)]
    if dates:
        rows = f"{sum(counts[date] for date in dates):,} of {sum(counts.values()):,} labels"
        raise DataError(
            f"Column '{column}' holds dates: {rows}, such as '{dates[0]}'. A spreadsheet may have "
            "made them of texts such as 1-2. Write the labels again as text, choose another "
            "--data.label-column, or set --data.label-separator none if the dates are the labels."
        )


def _one_spelling(counts: Counter[str], column: str, *, merge: bool) -> dict[str, str]:
    """Return the spelling to use in place of others; empty unless all labels are numbers.

    A whole number is written without a fraction, `0` for `0.0`; codes such as `007` stay as they
    are.

    Raises:
        DataError: if numbers are equal that differ in more than that.
    """
    numbers: dict[float, set[str]] = {}
    for label in counts:
        value = number_in(label)
        if value is None:
            return {}
        numbers.setdefault(value, set()).add(_without_zeros(label))
    for spellings in numbers.values():
        if len(spellings) > 1 and not merge:
            some = " and ".join(f"'{each}'" for each in sorted(spellings)[:3])
            raise DataError(
                f"Column '{column}' holds {some}, which are the same number, and may be one label "
                "or several. Set --data.merge-classes to read them as one, or "
                "--data.label-separator none to keep them as they are written."
            )
    whole = all(value.is_integer() and abs(value) < 1e15 for value in numbers)  # noqa: PLR2004
    best: dict[float, str] = {}
    for value, spellings in numbers.items():
        name = max(spellings, key=lambda each: (bool(_WHOLE.fullmatch(each)), -len(each), each))
        best[value] = str(int(value)) if whole and set(name) & set(".eE") else name
    spelled = {label: best[float(label)] for label in counts}
    return {label: name for label, name in spelled.items() if label != name}


def _without_zeros(number: str) -> str:
    """Return a number without a fraction of zeros, as programs add it to whole numbers."""
    whole = re.sub(r"\.0*$", "", number)
    return "0" if whole == "-0" else whole
