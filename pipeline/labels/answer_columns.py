"""The columns of the table that `patchline label` writes, by which it is recognised.

Its header is a header, whatever its classes are called, and a cell of `label` is one class, or a
JSON list where images have several labels: so it is read without a question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from patchline.pipeline.files.ignored_files import DEFAULT
from patchline.pipeline.labels.reading_rules import AUTO, LIST, NONE, ReadingRules

PATH, LABEL = "path", "label"
ANSWER_COLUMNS = (
    *(PATH, LABEL, "labeled_by", "labeled_at"),
    *("suggestion", "suggestion_probability", "source"),
)
"""In the order of the table; a person may add others behind them."""


def are_answers(names: Sequence[str]) -> bool:
    """Return whether the columns of a table are those of `patchline label`."""
    return tuple(names[: len(ANSWER_COLUMNS)]) == ANSWER_COLUMNS


def answer_rules(rules: ReadingRules, cells: Sequence[str]) -> ReadingRules:
    """Return how the labels of a table of answers are read, where a person does not say otherwise.

    Args:
        rules: of the person.
        cells: of the column `label`.
    """
    changed: dict[str, object] = {}
    if rules.label_separator == AUTO:
        are_lists = any(cells) and all(_is_list(cell) for cell in cells if cell.strip())
        changed["label_separator"] = LIST if are_lists else NONE
    if rules.no_label == (DEFAULT,):
        changed["no_label"] = ()  # an image without an answer has no row
    return rules.model_copy(update=changed)


def _is_list(cell: str) -> bool:
    try:
        return isinstance(json.loads(cell), list)
    except (ValueError, RecursionError):
        return False
