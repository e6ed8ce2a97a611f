"""The cells of a label column: what counts as no label, and numbers that are written differently.

Labels are text, so `001` and `NA` are classes. But programs write a missing value as `nan`, and the
same number as `0`, `0.0` and `0e0`, which no one means as three classes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from patchline.pipeline.files.ignored_files import DEFAULT

NO_LABEL = ("nan", "-nan", "<na>", "nat", "null", "#n/a", "#na", "?")
"""Cells that mean that there is no label, beside empty ones, in lower case."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_NAMED = 3
_LONGEST = 40


class LabelCells(NamedTuple):
    """The labels of a column."""

    labels: list[str]
    """Of each row; empty where there is none."""
    notes: list[str]
    """What was read in another way than it is written."""


def read_label_cells(
    cells: Sequence[str], column: str, no_label: Collection[str] = (DEFAULT,)
) -> LabelCells:
    """Return the labels in the cells of a column.

    Args:
        cells: of all rows.
        column: the name of the column, for the notes.
        no_label: cells that mean that there is no label, in any case; `default` stands for
            `NO_LABEL`.
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
    spelled = _one_spelling(used)
    if spelled:
        examples = [f"'{other}' is read as '{label}'" for other, label in spelled.items()]
        more = f" and {len(examples) - _NAMED:,} more" if len(examples) > _NAMED else ""
        notes.append(
            f"column '{column}' holds numbers, and the same number is one class: "
            f"{', '.join(examples[:_NAMED])}{more}"
        )
    final = {cell: spelled.get(label, label) for cell, label in labels.items()}
    return LabelCells([final[cell] for cell in cells], notes)


def number_in(label: str) -> float | None:
    """Return the number that a label is written as; None for any other text."""
    if len(label) > _LONGEST or not label.isascii() or not _NUMBER.fullmatch(label):
        return None
    value = float(label)
    return value if math.isfinite(value) else None


def _one_spelling(counts: Counter[str]) -> dict[str, str]:
    """Return the spelling to use in place of others; empty unless all labels are numbers.

    A whole number is written without a fraction, `0` for `0.0`; codes such as `007` stay as they
    are, unless the same number is also written in another way.
    """
    numbers: dict[float, list[str]] = {}
    for label in counts:
        value = number_in(label)
        if value is None:
            return {}
        numbers.setdefault(value, []).append(label)
    whole = all(value.is_integer() and abs(value) < 1e15 for value in numbers)  # noqa: PLR2004
    changed: dict[str, str] = {}
    for value, spellings in numbers.items():
        best = max(spellings, key=lambda each: (bool(_WHOLE.fullmatch(each)), counts[each], each))
        if whole and any(set(each) & set(".eE") for each in spellings):
            best = str(int(value))
        changed |= {each: best for each in spellings if each != best}
    return changed
