"""The rows of a table as images: with labels, splits and groups, or left out with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.plugin_api import (
    ANSWER_COLUMNS,
    ANSWER_GROUP,
    ANSWER_SOURCE,
    MULTI_LABEL,
    SINGLE_LABEL,
    DataError,
    LeftOutFile,
    ListedImage,
    SetCells,
    SourceContext,
    Split,
    answer_groups,
    answer_sources,
    are_answers,
    is_several,
    read_set_cells,
)
from patchline.plugins.data_sources.table_columns import (
    ABSENT,
    PRESENT,
    UNCERTAIN,
    Columns,
    is_uncertain,
    splits_of,
)
from patchline.plugins.data_sources.table_formats import first_few, format_cell, join_names
from patchline.plugins.data_sources.table_reading import Table


def row_labels(table: Table, columns: Columns, context: SourceContext) -> SetCells:
    """Return the labels of each row, and how several of a row are written, if they are.

    Raises:
        DataError: if a cell may be several labels or not, or is not 0 or 1 where it has to be.
    """
    if columns.labels:
        return _of_zero_one(table, columns.labels)
    if not columns.label:
        return SetCells([()] * len(table.column(columns.image)), "", [])
    given = table.class_names.get(columns.label)
    names = None if given is None else {str(number): name for number, name in enumerate(given)}
    cells = table.column(columns.label)
    column, file = format_cell(columns.label), str(table.file)
    read = read_set_cells(cells, column, context.rules, context.task, names, table=file)
    how = f"column '{format_cell(columns.label)}' holds several labels in a cell, {read.several}"
    return read._replace(several=how if read.several else "")


def _of_zero_one(table: Table, names: tuple[str, ...]) -> SetCells:
    labels: list[list[str]] = []
    empty, all_values = 0, set[str]()
    for name in names:
        column = table.column(name)
        labels += [[] for _ in range(len(column) - len(labels))]
        values = Counter(value.strip().casefold() for value in column)
        all_values |= values.keys()
        _check_zero_one(table, name, values, all_values)
        empty += values[""]
        label = name.strip()
        for row, value in enumerate(column):
            if value.strip().casefold() in PRESENT:
                labels[row].append(label)
    some = first_few([*map(format_cell, names)])
    notes = []
    if empty:
        notes.append(
            f"{empty:,} cell{' is' if empty == 1 else 's are'} empty in the columns of 0 and 1, "
            "and read as 0"
        )
    how = f"{len(names):,} columns of 0 and 1 each stand for a label ({some})"
    return SetCells([tuple(sorted(each)) for each in labels], how, notes)


def _check_zero_one(table: Table, name: str, values: Counter[str], all_values: set[str]) -> None:
    odd = sorted(values.keys() - ABSENT - PRESENT - {""})
    if odd:
        raise DataError(
            f"Column '{format_cell(name)}' of {table.file} holds '{format_cell(odd[0])}', but a "
            "column that stands for a label holds 1 for the images that have it and 0 for the "
            "others. Repair it, or leave it out of --data.label-columns."
        )
    if is_uncertain(all_values):
        raise DataError(
            f"Column '{format_cell(name)}' of {table.file}, or one before it, holds {UNCERTAIN}, "
            "so that it is not clear which images do not have the label. Write 1 for those that "
            "have it and 0 for the others."
        )


_MOST_COLUMNS = 50
"""Of the columns that are kept beside the image and its label."""
_NO_LABEL = "has no label"
_FEWEST_SEVERAL = 0.1
"""Of the images; if fewer have rows that differ in the label, the rows are mistakes."""
_NAMED = 3
_LOOKED_AT = 1000
NO_IMAGE = "the row names no image"


class Places(NamedTuple):
    """Where the images of all rows are."""

    root: Path
    paths: list[str | None]
    """None for a row without an image."""
    shown: list[str]
    """What the table says about each row's image."""
    missing: str
    """Why a row has no image."""
    notes: list[str]


def own_columns(table: Table, columns: Columns, rows: list[int]) -> dict[str, list[str]]:
    """Return the other columns of the table, for the rows whose images are listed."""
    taken = {*columns[:4], *columns.labels, *table.embedded}
    if are_answers(table.names):  # who labelled an image, and when, is no property of it
        taken |= {*ANSWER_COLUMNS, ANSWER_GROUP}
    others = [name for name in table.names if name not in taken]
    found = {}
    for name in others[:_MOST_COLUMNS]:
        values = table.column(name)
        found[name] = [values[row] for row in rows]
    if are_answers(table.names):
        sources = answer_sources(table.column("source"), table.column("labeled_at"))
        found[ANSWER_SOURCE] = [sources[row] for row in rows]
    return found


class ListedRows(NamedTuple):
    """The rows of a table as images."""

    images: list[ListedImage]
    left_out: list[LeftOutFile]
    """What is left out, with the reason."""
    rows: list[int]
    """The row of each image."""
    notes: list[str]
    """What the labels are read as, where that is not what is written."""


def list_rows(table: Table, columns: Columns, places: Places, context: SourceContext) -> ListedRows:
    """Return the images of a table, with their labels, splits and groups.

    The labels of an image that has several rows are united in data of several labels.

    Raises:
        DataError: if it is not clear whether images have several labels.
    """
    read = row_labels(table, columns, context)
    splits = splits_of(table, columns.split, len(read.sets))
    groups = _groups(table, columns, splits)
    rows = [
        ListedImage(path, "", splits[row], groups[row] or None, read.sets[row])
        for row, path in enumerate(places.paths)
        if path is not None
    ]
    several = context.needs_labels and is_several(
        _unite_labels(rows).values() if read.several else [("",)], context.task
    )
    if not several and context.needs_labels:
        _ask_about_rows(table, rows, context)
    images: dict[str, ListedImage] = {}
    first_rows: dict[str, int] = {}
    left_out: dict[str, LeftOutFile] = {}
    united = _unite_labels(rows) if several else {}
    for row, path in enumerate(places.paths):
        named = places.shown[row].strip()
        name = path or named or f"row {row + 1}"
        labels = read.sets[row]
        if path is None or (context.needs_labels and not several and not labels):
            reason = _NO_LABEL if path else places.missing if named else NO_IMAGE
            left_out[name] = LeftOutFile(name, reason, "damaged" if path is None else "foreign")
            continue
        if context.needs_labels and not several and len(labels) > 1:
            left_out[path] = LeftOutFile(path, f"has several labels, {join_names(labels)}")
            continue
        image = ListedImage(path, "".join(labels[:1]), splits[row], groups[row] or None)
        if several:
            image = image._replace(label="", labels=united[path])
        first_rows.setdefault(path, row)
        first = images.setdefault(path, image)
        if not context.needs_labels:  # so several labels contradict nothing
            image = image._replace(label=first.label)
        if first != image:
            left_out[path] = LeftOutFile(path, _contradiction(first, image))
    left_out = {  # but images that another row gives a label
        path: each
        for path, each in left_out.items()
        if each.reason != _NO_LABEL or each.path not in images
    }
    kept = [images[path] for path in images if path not in left_out]
    kept_rows = [first_rows[image.path] for image in kept]
    notes = [*_understood(table, read, kept, several=several), *read.notes]
    if several and read.several:
        notes += _name_differing(table, rows)
    return ListedRows(kept, list(left_out.values()), kept_rows, notes)


def _groups(table: Table, columns: Columns, splits: Sequence[Split | None]) -> Sequence[str]:
    """Return the group of each row; a table of answers names those of near duplicates itself."""
    own = table.column(columns.group) if columns.group else [""] * len(splits)
    if not are_answers(table.names) or ANSWER_GROUP not in table.names:
        return own
    return answer_groups(own, table.column(ANSWER_GROUP), [split is not None for split in splits])


def _unite_labels(rows: Sequence[ListedImage]) -> dict[str, tuple[str, ...]]:
    """Return the labels of each image, of all its rows."""
    labels: dict[str, set[str]] = {}
    for row in rows:
        labels.setdefault(row.path, set()).update(row.labels or ())
    return {path: tuple(sorted(each)) for path, each in labels.items()}


def _ask_about_rows(table: Table, rows: Sequence[ListedImage], context: SourceContext) -> None:
    """Ask what several rows of an image mean, unless they are so few that they are mistakes."""
    united = _unite_labels(rows)
    several = [path for path, labels in united.items() if len(labels) > 1]
    if context.task == SINGLE_LABEL or len(several) < _FEWEST_SEVERAL * len(united):
        return
    if several:
        path = several[0]
        raise DataError(
            f"{len(several):,} of {len(united):,} images in {table.file} have several rows with "
            f"different labels, such as {format_cell(path)}: {join_names(united[path])}. Set "
            f"--data.task {MULTI_LABEL} to learn all labels of each image, or --data.task "
            f"{SINGLE_LABEL} to leave these images out."
        )


def _understood(
    table: Table, read: SetCells, images: Sequence[ListedImage], *, several: bool
) -> list[str]:
    """Return how the labels were understood, with an example, and how many images have none."""
    if not images:
        return []
    if not several:
        if not read.several:
            return []
        first = images[0]
        example = f"{format_cell(first.path)} is {join_names((first.label,))}"
        flag = f"--data.task {MULTI_LABEL} learns several labels"
        how = f"{read.several}, and each image that is used has exactly one, so it is its class"
        return [f"{table.file.name}: {how}: {example} ({flag})"]
    first = max(images[:_LOOKED_AT], key=lambda image: min(len(image.labels or ()), _NAMED))
    how = read.several or "the labels of all rows of an image are its labels"
    flag = (
        "--data.label-columns chooses others"
        if how.endswith(")")
        else f"--data.task {SINGLE_LABEL} reads one label for each image"
    )
    labels = join_names(first.labels or ())
    return [f"{table.file.name}: {how}: {format_cell(first.path)} has {labels} ({flag})"]


def _name_differing(table: Table, rows: Sequence[ListedImage]) -> list[str]:
    """Name the images whose rows say different labels, where a row can hold several of them."""
    sets: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        sets.setdefault(row.path, set()).add(row.labels or ())
    several = [path for path, each in sets.items() if len(each) > 1]
    if not several:
        return []
    words = "image has" if len(several) == 1 else "images have"
    return [
        (
            f"{table.file.name}: {len(several):,} {words} rows with different labels, all of which "
            f"count, such as {format_cell(several[0])}"
        )
    ]


def _contradiction(one: ListedImage, other: ListedImage) -> str:
    pairs: list[tuple[str, str | Split | None, str | Split | None]] = [
        ("labels", one.label, other.label),
        ("splits", one.split, other.split),
        ("groups", one.group, other.group),
    ]
    what, first, second = next(each for each in pairs if each[1] != each[2])
    return f"has two {what} in the table, {first or 'none'} and {second or 'none'}"
