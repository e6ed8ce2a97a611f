"""Several labels in one cell: lists, texts with a separator, and paths of a taxonomy.

A list in the notation of JSON, Python or NumPy, `["beach", "sunset"]`, is what it looks like. A
text such as `beach|sunset` may be two labels or the name of one class. The cells themselves tell if
they hold different numbers of parts, and the parts occur in other cells, too. Spaces are never
proof, because names have spaces: where parts recur, that is a question. Texts that share no parts
are names.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from patchline.pipeline.data.labels.label_cells import number_in, read_label_cells
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.labels.reading_rules import AUTO, LIST, NONE, SPACE, ReadingRules
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import visible

TaxonomyPath = tuple[str, ...]


def innermost_paths(paths: Sequence[TaxonomyPath]) -> tuple[TaxonomyPath, ...]:
    """Return the paths of an answer that no other one continues: a cat is said to be an animal."""
    return tuple(
        each
        for each in paths
        if not any(other != each and other[: len(each)] == each for other in paths)
    )


def check_branches(paths: Iterable[TaxonomyPath], place: str) -> list[str]:
    """Return a note on a label that is a part of another label.

    Args:
        paths: the taxonomy paths of all labels.
        place: the column or file that holds the labels, for messages.

    Raises:
        DataError: if one name is in two branches.
    """
    seen: dict[str, TaxonomyPath] = {}
    for path in paths:
        first = seen.setdefault(path[-1], path)
        if first != path:
            one, other = (visible(" > ".join(each)) for each in (first, path))
            raise DataError(
                f"{place} has the label '{visible(path[-1])}' in two branches, '{one}' and "
                f"'{other}', which would make one class of two. Rename one of them."
            )
    nested = ((above, path[-1]) for path in seen.values() for above in path[:-1] if above in seen)
    return [
        f"'{visible(whole)}' is a class of its own beside its part '{visible(part)}', and an image "
        "of the part may be called either"
        for whole, part in list(nested)[:1]
    ]


_CANDIDATES = ("|", ";", ",", SPACE)
_MOST_CELL = 20_000
"""Characters of a cell that is parsed as a list."""
_MOST_LABELS = 1000
"""Labels in one cell; more are damage."""
_LONGEST_SHOWN = 60
_FEWEST_SEVERAL = 0.1
"""Of the images, that have no label or several; if fewer have, the data has one label for each."""
_LIST = re.compile(r"\s*(?:\[.*\]|\{.*\})\s*", re.DOTALL)
_FIELDS = ["choices"], ["taxonomy"]
"""Of cells such as `{"choices": ["beach"]}`, as Label Studio writes several labels."""
_TEXT = re.compile(r"'(?:[^'\\\n]|\\.)*+'|\"(?:[^\"\\\n]|\\.)*+\"")
_ONLY_TEXTS = re.compile(rf"\s*+(?:(?:{_TEXT.pattern})\s*+)++")
_ONLY_NUMBERS = re.compile(r"\s*+(?:-?[0-9]+\.?[0-9]*+\s*+)++")


class SetCells(NamedTuple):
    """The labels in the cells of a column."""

    sets: list[tuple[str, ...]]
    """The sorted labels of each row; empty where there is none."""
    several: str
    """How several labels stand in a cell, in words; empty if each cell is one label."""
    notes: list[str]
    """What was read in another way than it is written."""


def read_set_cells(
    cells: Sequence[str],
    column: str,
    rules: ReadingRules,
    task: str = AUTO,
    names: Mapping[str, str] | None = None,
    *,
    table: str = "",
) -> SetCells:
    """Return the labels in the cells of a column, and say how several of them are written.

    Args:
        cells: the cells of all rows.
        column: its name, for messages.
        rules: the separator, and the cells that mean no label.
        task: what is to be learned; with one label for each image, only lists are split.
        names: the name of each class number; a number without a name is no label.
        table: the file, for messages.

    Raises:
        DataError: if the cells may be several labels or not, or one cannot be read.
    """
    counts = Counter(cells)
    place = f"'{visible(column)}'{f' of {visible(table)}' if table else ''}"
    separator, unsplit = rules.label_separator, list[str]()
    lists = _as_lists(counts, place) if separator in (AUTO, LIST) else None
    if separator == LIST and lists is None:
        raise DataError(
            f"data.label_separator is {LIST}, but column {place} holds no list: "
            f'{_short(next(iter(counts), ""))}. Write lists such as ["beach", "sunset"], or set '
            "another separator."
        )
    if lists is not None:
        parts = {cell: tuple(path[-1] for path in paths) for cell, paths in lists.items()}
        how, all_paths = "lists", (path for paths in lists.values() for path in paths)
        for note in check_branches(all_paths, f"Column {place}"):
            unsplit.append(f"column '{visible(column)}': {note}")
    else:
        chosen = separator
        if separator == AUTO:
            chosen = NONE if names else _separator(counts, place, rules, task)
        parts = {cell: split_cell(cell, chosen) for cell in counts}
        how = "" if chosen == NONE else f"separated by {_in_words(chosen)}"
        if separator == AUTO and task == SINGLE_LABEL and not names:
            unsplit = _unsplit(counts, column, rules)
    for cell, labels in parts.items():
        if len(labels) > _MOST_LABELS:
            raise DataError(
                f"A cell of column {place} holds {len(labels):,} labels: "
                f"{_short(cell)}. At most {_MOST_LABELS:,} are read; repair the table, or set "
                "--data.label-separator none."
            )
    if names is not None:
        known = {
            cell: tuple(names.get(label.strip(), "") for label in labels)
            for cell, labels in parts.items()
        }
        spelled, notes = {name: name for name in names.values()}, list[str]()
        parts = known
    else:
        atoms = [label for cell in cells for label in parts[cell]]
        literal = separator in (NONE, LIST)
        read = read_label_cells(
            atoms, column, rules.no_label, literal=literal, merge=rules.merge_classes
        )
        spelled, notes = dict(zip(atoms, read.labels, strict=True)), read.notes
    sets = {
        cell: tuple(sorted({spelled.get(label, "") for label in labels} - {""}))
        for cell, labels in parts.items()
    }
    return SetCells([sets[cell] for cell in cells], how, [*notes, *unsplit])


def split_cell(cell: str, separator: str) -> tuple[str, ...]:
    """Return the parts of a cell; the whole cell if the separator is `none`."""
    if separator == NONE:
        return (cell,)
    parts = cell.split() if separator == SPACE else cell.split(separator)
    return tuple(part.strip() for part in parts if part.strip()) or ("",)


def _separator(counts: Mapping[str, int], place: str, rules: ReadingRules, task: str) -> str:
    """Return what separates the labels of a cell; `none` if each cell is one label.

    Raises:
        DataError: if that is not clear.
    """
    if task == SINGLE_LABEL:
        return NONE
    found = _likely(counts, rules)
    if found.evidence != _POSSIBLE:
        return found.separator
    raise DataError(
        f"Column {place} may hold several labels in a cell, separated by "
        f"{_in_words(found.separator)}, or names of single classes: {_short(found.example)}. Set "
        f"--data.label-separator {_flag(found.separator)} to learn several labels for each "
        f"image, or --data.label-separator {NONE} if each cell is one label."
    )


class _Likely(NamedTuple):
    """What seems to separate the labels of a cell."""

    separator: str
    """`none` if nothing does."""
    evidence: int
    example: str
    """A cell with the most parts."""


def _likely(counts: Mapping[str, int], rules: ReadingRules) -> _Likely:
    """Return the first separator for which there is evidence."""
    missing = {word.casefold() for word in rules.no_label}
    cells = [cell.strip() for cell in counts if cell.strip().casefold() not in {"", *missing}]
    for separator in _CANDIDATES:
        evidence = _evidence(cells, separator)
        if evidence != _UNLIKELY:
            example = max(cells, key=lambda cell: len(split_cell(cell, separator)))
            return _Likely(separator, evidence, example)
    return _Likely(NONE, _UNLIKELY, "")


def _unsplit(counts: Mapping[str, int], column: str, rules: ReadingRules) -> list[str]:
    """Say which cells look like several labels where each is learned as one class."""
    found = _likely(counts, rules)
    if found.evidence == _UNLIKELY:
        return []
    several = [cell for cell in counts if len(split_cell(cell, found.separator)) > 1]
    rows, flag = sum(counts[cell] for cell in several), _flag(found.separator)
    note = (
        f"column '{visible(column)}' holds {_in_words(found.separator)} in {rows:,} of "
        f"{sum(counts.values()):,} cells, and each cell is one class, such as "
        f"{_short(found.example)}, because data.task is {SINGLE_LABEL} (--data.task {MULTI_LABEL} "
        f"--data.label-separator {flag} learns several labels)"
    )
    return [note]


_CLEAR, _POSSIBLE, _UNLIKELY = 2, 1, 0


def _evidence(cells: Sequence[str], separator: str) -> int:
    """Return whether distinct cells are several labels with this separator.

    A cell is one of several labels if at least two of its parts occur in other cells, too. Clear
    are numbers, which have no spaces within, and cells with different numbers of parts most of
    which are like that. `oxeye daisy` beside `daisy` shares one part only.
    """
    parts = {cell: frozenset(split_cell(cell, separator)) for cell in cells}
    combined = [cell for cell, labels in parts.items() if len(labels) > 1]
    if not combined:
        return _UNLIKELY
    found = Counter(label for labels in parts.values() for label in labels)
    recurring = [cell for cell in combined if sum(found[label] > 1 for label in parts[cell]) > 1]
    most = 2 * len(recurring) >= len(combined)
    sizes = {len(labels) for labels in parts.values()}
    if all(number_in(label) is not None for label in found):
        return _CLEAR if most else _POSSIBLE
    if separator == SPACE:
        return _POSSIBLE if most and len(sizes) > 1 else _UNLIKELY
    if most and len(sizes) > 1 and (separator != "," or _in_any_place(cells)):
        return _CLEAR
    if separator == ",":
        return _POSSIBLE if most else _UNLIKELY
    shares = any(found[label] > 1 for cell in combined for label in parts[cell])
    return _POSSIBLE if shares else _UNLIKELY


def _in_any_place(cells: Sequence[str]) -> bool:
    """Return whether most labels after a comma also begin a cell, or are one.

    In `Smith, John` and `cat, black` the second part qualifies the first, and begins no cell.
    """
    parts = [split_cell(cell, ",") for cell in cells]
    first = {labels[0] for labels in parts}
    later = {label for labels in parts for label in labels[1:]}
    return 2 * len(later & first) >= len(later)


def _as_lists(cells: Collection[str], place: str) -> dict[str, tuple[TaxonomyPath, ...]] | None:
    """Return the labels of each cell if some are lists; None if none is.

    Raises:
        DataError: if one looks like a list beside others, and cannot be read.
    """
    lists = {cell: _list_in(cell, place) for cell in cells}
    if all(labels is None for labels in lists.values()):
        return None
    for cell, labels in lists.items():
        if labels is None and cell.lstrip().startswith("[") and _LIST.fullmatch(cell):
            raise DataError(
                f"Column {place} holds lists, but {_short(cell)} cannot be read as one. Write it "
                'as ["beach", "sunset"].'
            )
    return {cell: ((cell,),) if paths is None else paths for cell, paths in lists.items()}


def _list_in(cell: str, place: str) -> tuple[TaxonomyPath, ...] | None:
    """Return the items of a list in the notation of JSON, Python or NumPy; None for other text.

    Those that are no paths of a taxonomy are paths of one name.

    Python would join the texts of NumPy's `['beach' 'sunset']`, which has no commas, to one.

    Raises:
        DataError: if the cell is another structure than a list of labels, choices or a taxonomy.
    """
    if len(cell) > _MOST_CELL or not _LIST.fullmatch(cell):
        return None
    items = _items_without_commas(cell.strip()[1:-1])
    if items is not None:
        return tuple((item,) for item in items)
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict) and list(value) in _FIELDS:
            [value] = value.values()
            value = value if isinstance(value, list) else [value]
        kinds = str | int | float | None
        if isinstance(value, list) and all(isinstance(each, kinds) for each in value):
            return tuple((str(each),) for each in value if each is not None)
        if isinstance(value, list) and all(map(_is_path, value)):
            return innermost_paths(list(map(tuple, value)))
        raise DataError(
            f"Column {place} holds {_short(cell)}, which is no label and no list of labels. Write "
            'labels such as ["beach", "sunset"], choose another --data.label-column, or set '
            f"--data.label-separator {NONE} if it is one; regions of Label Studio are read from "
            "its JSON export."
        )
    return None


def _is_path(value: object) -> bool:
    """Return whether a value is the path of a label in a taxonomy."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _items_without_commas(inside: str) -> tuple[str, ...] | None:
    """Return texts or numbers that only spaces separate; None unless there are several."""
    if _ONLY_TEXTS.fullmatch(inside):
        items = [str(ast.literal_eval(text)) for text in _TEXT.findall(inside)]
    elif _ONLY_NUMBERS.fullmatch(inside):
        items = inside.split()
    else:
        return None
    return tuple(items) if len(items) > 1 else None


def _in_words(separator: str) -> str:
    return "spaces" if separator == SPACE else f"'{visible(separator)}'"


def _flag(separator: str) -> str:
    return f"'{separator}'" if separator in ("|", ";") else separator


def _short(cell: str) -> str:
    cell = cell.strip()
    text = cell if len(cell) <= _LONGEST_SHOWN else f"{cell[: _LONGEST_SHOWN - 1]}…"
    return f"'{visible(text)}'"


def is_several(sets: Collection[tuple[str, ...]], task: str) -> bool:
    """Return whether the label sets of images are data of several labels.

    If nearly every image has exactly one label, they are data of one label, and the others are
    mistakes.
    """
    others = sum(len(labels) != 1 for labels in sets)
    return task == MULTI_LABEL or (others > 0 and others >= _FEWEST_SEVERAL * len(sets))
