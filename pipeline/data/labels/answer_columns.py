"""The columns of the table that `patchline label` writes, by which it is recognised.

Its header is a header, whatever its classes are called, and a cell of `label` is one class, or a
JSON list where images have several labels: so it is read without a question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from patchline.pipeline.data.labels.reading_rules import AUTO, LIST, NONE, ReadingRules
from patchline.pipeline.workspace.files.folder_walk import DEFAULT

PATH, LABEL, ANSWER_GROUP = "path", "label", "group"
ANSWER_COLUMNS = (
    *(PATH, LABEL, "labeled_by", "labeled_at"),
    *("suggestion", "suggestion_probability", "source"),
)
"""In the order of the table; `ANSWER_GROUP` and columns of a person are behind them."""
NEAR = "near "
"""Start of the names of groups of near duplicates, which the data itself does not group."""

ANSWER_SOURCE = "patchline_label_source"
"""The column of the manifest for the cells of `source`: a name that no person gives."""
RANDOM: Final = "random"
"""The image was drawn at random."""
DATA, TABLE, FINDING = "data", "table", "finding"
"""Where else a label is from: the folder's own, an edited table, the correction of a finding."""
UNCHOSEN = frozenset({RANDOM, DATA, TABLE, FINDING})
"""The sources of labels of images that nobody chose because they help most."""
NEAR_DUPLICATE = "near duplicate"
"""The image is like another one, which a person was asked about."""


def are_answers(names: Sequence[str]) -> bool:
    """Return whether the columns of a table are those of `patchline label`."""
    return tuple(names[: len(ANSWER_COLUMNS)]) == ANSWER_COLUMNS


def answer_rules(rules: ReadingRules, cells: Sequence[str]) -> ReadingRules:
    """Return how the labels of a table of answers are read, where a person does not say otherwise.

    Args:
        rules: the rules that the person has set.
        cells: the cells of the column `label`.
    """
    changed: dict[str, object] = {}
    if rules.label_separator == AUTO:
        are_lists = any(cells) and all(_is_list(cell) for cell in cells if cell.strip())
        changed["label_separator"] = LIST if are_lists else NONE
    if rules.no_label == (DEFAULT,):
        changed["no_label"] = ()  # an image without an answer has no row
    return rules.model_copy(update=changed)


def answer_sources(sources: Sequence[str], times: Sequence[str]) -> list[str]:
    """Return why the images of a table of answers were labelled; a row without both is by hand.

    Args:
        sources: the cells of the column `source`.
        times: the cells of the column `labeled_at`.
    """
    return [source or ("" if time else TABLE) for source, time in zip(sources, times, strict=True)]


def answer_groups(own: Sequence[str], cells: Sequence[str], fixed: Sequence[bool]) -> list[str]:
    """Return the groups of the images of a table of answers.

    Args:
        own: the groups from another column that a person has named; empty for an image in none.
        cells: the cells of the column `ANSWER_GROUP`.
        fixed: whether the table says which split an image is in; near duplicates in several are
            for an inspection to find.
    """
    near = [
        "" if is_fixed and name.startswith(NEAR) else name
        for name, is_fixed in zip(cells, fixed, strict=True)
    ]
    return join_groups(own, near)


def join_groups(own: Sequence[str], near: Sequence[str]) -> list[str]:
    """Return the name of each image's group if images that share a name in either are in one.

    Args:
        own: names of a person's groups, which come first; empty for an image in none.
        near: names of groups of near duplicates.
    """
    parent: dict[tuple[bool, str], tuple[bool, str]] = {}

    def root(key: tuple[bool, str]) -> tuple[bool, str]:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    keys = [
        [key for key in ((False, one), (True, other)) if key[1]]
        for one, other in zip(own, near, strict=True)
    ]
    for each in keys:
        roots = sorted(map(root, each))
        for other in roots[1:]:
            parent[other] = roots[0]
    return [root(each[0])[1] if each else "" for each in keys]


def _is_list(cell: str) -> bool:
    try:
        return isinstance(json.loads(cell), list)
    except (ValueError, RecursionError):
        return False
