"""Which columns of a table hold the images, the labels and the splits.

A column that may say what belongs together, or what is for the test, is not passed over: it is a
question where that is likely, and a note where it is possible.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from patchline.plugin_api import (
    ANSWER_GROUP,
    IMAGE_SUFFIXES,
    DataError,
    PluginConfig,
    Split,
    are_answers,
    split_named,
)
from patchline.plugins.data_sources.table_formats import first_few, format_cell, join_names
from patchline.plugins.data_sources.table_reading import Table

_IMAGE_NAMES = (
    "image", "img", "image_path", "img_path", "file_name", "filename", "file", "filepath",
    "file_path", "image_file", "path", "image_name", "image_id", "img_id", "imageid", "photo",
    "picture", "id",
)  # fmt: skip
_LABEL_NAMES = (
    "label", "class", "label_name", "class_name", "classname", "category", "target", "species",
    "breed", "variety", "diagnosis", "dx", "labels", "y", "tags", "classes", "categories",
    "choice", "choices", "taxonomy",
)  # fmt: skip
_SPLIT_NAMES = frozenset({
    "split", "splits", "subset", "partition", "data_split", "dataset_split", "split_name",
    "train_test_split", "train_test",
})  # fmt: skip
_POSSIBLE_SPLITS = frozenset({
    "set", "phase", "usage", "fold", "fold_name", "fold_id", "kfold", "cv_fold",
})  # fmt: skip
"""Names that may also mean something else."""
_MOST_SPLITS = 100
"""Values of a column of splits, however they are spelled."""
_SUFFIX = r"_?(?:id|uid|no|nr|num|number|name|key|code)"
_GROUP = re.compile(
    rf"(?:.*_)?(?:(?:patient|participant|lesion|video)(?:{_SUFFIX})?"
    rf"|(?:subject|person|individual|animal|case|study|session|series|sequence|clip){_SUFFIX})"
)
"""Names of columns whose equal values most likely mean one patient, or the like."""
_POSSIBLE_GROUP = re.compile(
    rf"(?:.*_)?(?:subject|person|individual|animal|case|study|session|series|sequence|clip|scene"
    rf"|location|specimen|slide|group)(?:{_SUFFIX})?"
)
NO_COLUMN = "none"
"""In place of the column of splits or groups: the table has none."""
_LOOKED_AT = 100


ABSENT = frozenset({"0", "0.0", "-1", "-1.0", "false"})
PRESENT = frozenset({"1", "1.0", "true"})
"""Cells of a column that stands for a label, in lower case."""
_ANSWERS = ABSENT | PRESENT
UNCERTAIN = "-1 beside 0 or empty cells"
"""What a column holds in which it is not clear which images do not have the label."""
_NAMED = 3
_MOST_ODD = 0.05
"""Of the cells; a column with more values beside 0 and 1 stands for something else."""
_ABOUT_THE_ROW = frozenset({
    "verified", "reviewed", "checked", "approved", "labeled", "labelled", "annotated", "unlabeled",
    "unlabelled", "augmented", "duplicate", "duplicated", "excluded", "exclude", "ignored",
    "ignore", "skipped", "holdout", "held_out", "iscrowd",
})  # fmt: skip
"""Names of columns of 0 and 1 that are rather not labels, also after `is_`."""
_ABOUT_WORK = _ABOUT_THE_ROW | {
    "crowd", "difficult", "hidden", "deleted", "flagged", "synthetic", "used", "public", "private",
    "corrupt", "corrupted", "missing", "usable", "done", "gold", "skip",
}  # fmt: skip
"""Names that are so only after `is_`: a label may have them too."""
_PREFIX = re.compile(r"(?:is|in|for|was|use|used_for)_?(?=[a-z]{3})")


class Columns(NamedTuple):
    """The columns to read."""

    image: str
    label: str
    """Empty if the images have no labels, and need none."""
    split: str | None
    group: str | None
    guessed: tuple[str, ...]
    """What each guess says: `images from 'id'`."""
    labels: tuple[str, ...] = ()
    """Columns of 0 and 1 that each stand for a label, in place of a column of labels."""
    notes: tuple[str, ...] = ()
    """Notes on columns that are not read, though they may say what belongs together."""


class ColumnConfig(PluginConfig):
    """The columns that the settings name; those that are None are guessed."""

    image_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    group_column: str | None = None


def choose_columns(
    table: Table, given: ColumnConfig, label_columns: Sequence[str], *, needs_labels: bool = True
) -> Columns:
    """Return the columns that were given, and guess the others.

    Where no labels are needed, only a column that is named like one is taken for them. `none` in
    place of the column of splits or groups says that there is none.

    Raises:
        DataError: if a column does not exist or cannot be guessed, or if one that was not given
            most likely holds splits or groups.
    """
    image, label = given.image_column, given.label_column
    asks_splits, asks_groups = given.split_column is None, given.group_column is None
    split, group = (
        None if name == NO_COLUMN and name not in table.names else name
        for name in (given.split_column, given.group_column)
    )
    names = {"image": image, "label": label, "split": split, "group": group}
    _check_given(table, label_columns, names)
    guessed = []
    taken = {name for name in (label, split, group, *label_columns) if name is not None}
    if image is None:
        image = _guess_image(table, taken)
        guessed.append(f"images from '{format_cell(image)}'")
    found_split = _guess_split(table, {image, *taken}) if asks_splits else split
    taken |= {name for name in (image, found_split) if name is not None}
    labels = tuple(dict.fromkeys(label_columns))
    if label is None and not labels:
        if needs_labels:
            label, labels = _guess_labels(table, taken)
        else:
            label = _possible_label(table, taken)
        if label:
            guessed.append(f"labels from '{format_cell(label)}'")
    if found_split != split:
        guessed.append(f"splits from '{format_cell(found_split or '')}'")
    taken |= {label or "", *labels, *table.embedded}
    rest = [name for name in table.names if name not in taken] if needs_labels else []
    notes = _ask_about_splits(table, rest) if asks_splits and not found_split else []
    notes += _ask_about_groups(table, image, rest) if asks_groups else []
    return Columns(image, label or "", found_split, group, tuple(guessed), labels, tuple(notes))


def _check_given(table: Table, labels: Sequence[str], names: Mapping[str, str | None]) -> None:
    """Refuse columns that do not exist, and two settings for the labels."""
    if labels and names["label"] is not None:
        raise DataError(
            f"data.label_column is '{format_cell(names['label'])}', and data.label_columns names "
            "others. Give one of them."
        )
    settings = [(f"{kind}_column", name) for kind, name in names.items()]
    for setting, name in (*settings, *(("label_columns", each) for each in labels)):
        if name is not None and name not in table.names:
            raise DataError(
                f"data.{setting} is '{name}', but {table.file} has the columns "
                f"{first_few([*map(format_cell, table.names)], 20)}. Choose one of them."
            )


def splits_of(table: Table, name: str | None, rows: int) -> list[Split | None]:
    """Return the split of each row; None where the table gives none.

    In a column such as `is_test`, 1 is the split that it is named for, and 0 the other one.

    Raises:
        DataError: if a value is not a name of a split.
    """
    if name is None:
        return [None] * rows
    values = table.column(name)
    own = _split_of_name(name)
    if own and holds_zero_one(table, name):
        other: Split = "test" if own == "train" else "train"
        cells = (value.strip().casefold() for value in values)
        return [(own if cell in PRESENT else other) if cell else None for cell in cells]
    unknown = sorted({value for value in values if value.strip() and not split_named(value)})
    if unknown:
        some = ", ".join(f"'{format_cell(value)}'" for value in unknown[:3])
        raise DataError(
            f"The split column '{format_cell(name)}' of {table.file} holds {some}. Use train, "
            "validation and test, or choose another data.split_column."
        )
    return [split_named(value) for value in values]


def _guess_image(table: Table, taken: set[str]) -> str:
    names = [name for name in table.names if name not in taken]
    embedded = [name for name in names if name in table.embedded]
    if embedded:
        return embedded[0] if len(embedded) == 1 else _choose_by_name(table, embedded, "image")
    like_files = [name for name in names if _are_image_files(table, name)]
    if len(like_files) == 1:
        return like_files[0]
    return _choose_by_name(table, like_files or names, "image")


def _guess_labels(table: Table, taken: set[str]) -> tuple[str, tuple[str, ...]]:
    """Return the column of the labels, or those of 0 and 1 that each stand for one.

    Raises:
        DataError: if neither is obvious.
    """
    names = [name for name in table.names if name not in taken and name not in table.embedded]
    with_classes = [name for name in names if name in table.class_names]
    if len(with_classes) == 1:
        return with_classes[0], ()
    if len(names) == 1 and not with_classes:
        return names[0], ()
    usual = _usual(with_classes or names, "label")
    if usual is not None:
        return usual, ()
    rest = [] if with_classes else [name for name in names if not _counts_rows(table, name)]
    zero_one = tuple(name for name in rest if holds_zero_one(table, name))
    if len(_likely_labels(zero_one)) > 1:
        others = [name for name in rest if name not in zero_one]
        _ask_about_columns(table, zero_one, others)
        return "", zero_one
    almost = {name: odd for name in rest if (odd := _almost_zero_one(table, name))}
    if almost and len(zero_one) + len(almost) > 1:
        raise DataError(
            f"{_almost_words(table, almost)} Write 1 or 0 there, or set --data.label-column."
        )
    return _choose_by_name(table, with_classes or names, "label"), ()


def _ask_about_columns(table: Table, zero_one: Sequence[str], others: Sequence[str]) -> None:
    """Ask which columns of 0 and 1 are labels, unless all columns are.

    Raises:
        DataError: if there are other columns, or one of 0 and 1 is named for something else.
    """
    likely = _likely_labels(zero_one)
    odd = [name for name in zero_one if name not in likely]
    if not odd and not others:
        return
    columns = " ".join(
        f"--data.label-columns {shlex.quote(format_cell(name))}" for name in likely[:_NAMED]
    )
    more = " …" if len(likely) > _NAMED else ""
    parts = []
    if odd:
        whose = "whose name says" if len(odd) == 1 else "whose names say"
        parts.append(
            f"{', '.join(map(format_cell, odd[:_NAMED]))} among them, {whose} something about the "
            "row"
        )
    if others:
        parts.append(f"others: {', '.join(map(format_cell, others[:_NAMED]))}")
    almost = {name: value for name in others if (value := _almost_zero_one(table, name))}
    hint = f" {_almost_words(table, almost)}" if almost else ""
    raise DataError(
        f"{table.file} has {len(zero_one):,} columns of 0 and 1, which may each stand for a "
        f"label, and {' and '.join(parts)}.{hint} Set {columns}{more} for the columns of labels, "
        "or --data.label-column to one column that holds them."
    )


def _likely_labels(zero_one: Sequence[str]) -> list[str]:
    """Return the columns of 0 and 1 but those whose names are of something else.

    `is_train` divides the images, and `is_verified` tells about the work on a row. `train` alone
    may be the vehicle; beside `test` it is not.
    """
    splits = {name for name in zero_one if split_named(_plain(name), exactly=True)}
    vehicle = len(splits) == 1
    return [name for name in zero_one if not _is_about_the_row(_plain(name), vehicle=vehicle)]


def _is_about_the_row(name: str, *, vehicle: bool) -> bool:
    if name in _ABOUT_THE_ROW or (_split_of_name(name) and not (vehicle and name == "train")):
        return True
    start = _PREFIX.match(name)
    return start is not None and name[start.end() :] in _ABOUT_WORK


def _almost_zero_one(table: Table, name: str) -> str:
    """Return the value for which a column does not hold 0 and 1 alone; empty if it has others."""
    values = Counter(value.strip().casefold() for value in table.column(name))
    if is_uncertain(values):
        return UNCERTAIN
    values.pop("", None)
    odd = {value: count for value, count in values.items() if value not in _ANSWERS}
    few = _MOST_ODD * sum(values.values())
    if not odd or sum(odd.values()) > few or not values.keys() & PRESENT:
        return ""
    value, count = max(odd.items(), key=lambda pair: pair[1])
    cells = f"{count:,} of {sum(values.values()):,} cells"
    return f"'{format_cell(value)}' in {cells}"


def _almost_words(table: Table, almost: dict[str, str]) -> str:
    """Say which columns would be of 0 and 1 but for some value."""
    some = first_few([f"'{format_cell(name)}', which holds {odd}" for name, odd in almost.items()])
    return f"{table.file.name} would have another column of 0 and 1 in {some}."


def holds_zero_one(table: Table, name: str) -> bool:
    """Return whether a column says of each image whether it has a label; a cell may be empty."""
    values = {value.strip().casefold() for value in table.column(name)}
    return values != {""} and values <= _ANSWERS | {""} and not is_uncertain(values)


def is_uncertain(values: Collection[str]) -> bool:
    """Return whether cells of 0 and 1 hold -1 as a third answer, as those of CheXpert do.

    Args:
        values: the cells of a column, in lower case; without 0 and empty cells, -1 is the opposite
            of 1.
    """
    plain = {value.removesuffix(".0") for value in values}
    return "-1" in plain and bool(plain & {"0", ""}) and plain <= _ANSWERS | {""}


def _counts_rows(table: Table, name: str) -> bool:
    """Return whether a column only counts the rows, as pandas writes its index."""
    if name and not name.startswith("Unnamed") and _plain(name) != "index":
        return False
    values = table.column(name)
    return any(
        values == [str(number) for number in range(start, start + len(values))] for start in (0, 1)
    )


def _possible_label(table: Table, taken: set[str]) -> str:
    """Return the column with class names or a usual name; empty if there is none."""
    names = [name for name in table.names if name not in taken and name not in table.embedded]
    plain = {_plain(name): name for name in reversed(names)}
    usual = [name for name in names if name in table.class_names]
    usual += [plain[each] for each in _LABEL_NAMES if each in plain]
    return usual[0] if usual else ""


def _guess_split(table: Table, taken: set[str | None]) -> str | None:
    """Return the column that holds names of splits, and nothing else.

    Raises:
        DataError: if there are several that differ.
    """
    found = []
    for name in table.names:
        plain = _plain(name)
        if name in taken or name in table.embedded or plain in _LABEL_NAMES:
            continue
        values = {value for value in table.column(name) if value.strip()}
        if len(values) > _MOST_SPLITS:
            continue
        splits = set(map(split_named, values))
        usual = plain in _SPLIT_NAMES | _POSSIBLE_SPLITS
        if splits and None not in splits and (usual or len(splits) > 1):
            found.append(name)
    rows = len(table.column(table.names[0])) if len(found) > 1 else 0
    if len({tuple(splits_of(table, name, rows)) for name in found}) > 1:
        raise DataError(
            f"The columns {join_names(found)} of {table.file} divide the images differently. Set "
            f"--data.split-column to one of them, or to {NO_COLUMN}."
        )
    return found[0] if found else None


def _ask_about_splits(table: Table, rest: Sequence[str]) -> list[str]:
    """Ask about columns that most likely hold splits, and return a note on those that may.

    Raises:
        DataError: if there is one.
    """
    named = [name for name in rest if _split_of_name(name) and holds_zero_one(table, name)]
    if named:
        answer = "Write one column with train, validation and test"
        if len(named) == 1:
            own = _split_of_name(named[0])
            meaning = f"1 is {own}, 0 {'test' if own == 'train' else 'train'}"
            answer = f"Set --data.split-column {shlex.quote(format_cell(named[0]))} ({meaning})"
        raise DataError(
            f"{table.file} says in {join_names(named)} which images are for which split, but has "
            f"no column of splits. {answer}, or set --data.split-column {NO_COLUMN} to have "
            "Patchline split all images."
        )
    notes = []
    for name in rest:
        values = Counter(value for value in table.column(name) if value.strip())
        if len(values) > _MOST_SPLITS:
            continue
        odd = [value for value in values if not split_named(value)]
        splits = {split_named(value) for value in values} - {None}
        share = 1 - sum(values[value] for value in odd) / max(1, sum(values.values()))
        is_named = _plain(name) in _SPLIT_NAMES and len(values) > 1
        if is_named or (len(splits) > 1 and share >= 1 / 2):
            rows = f"{sum(values[value] for value in odd):,} of {sum(values.values()):,} rows"
            raise DataError(
                f"Column '{format_cell(name)}' of {table.file} seems to divide the images, but "
                f"holds {join_names(odd)} in {rows}. Write train, validation or test there, leave "
                "the cells empty to have these images divided, or delete the rows; "
                f"--data.split-column {NO_COLUMN} leaves the column unread."
            )
        if _plain(name) in _POSSIBLE_SPLITS and len(values) > 1:
            notes.append(
                f"{table.file.name}: column '{format_cell(name)}' holds {join_names(odd)}, and is "
                "not read as splits (--data.split-column names a column with train, validation and "
                "test)"
            )
    return notes


def _ask_about_groups(table: Table, image: str, rest: Sequence[str]) -> list[str]:
    """Ask about columns such as a patient whose values repeat, and return a note on those that may.

    Raises:
        DataError: if there is one.
    """
    own = {ANSWER_GROUP} if are_answers(table.names) else set()
    notes = []
    for name in rest:
        plain = _plain(name)
        if name in own or (not _POSSIBLE_GROUP.fullmatch(plain) and not _GROUP.fullmatch(plain)):
            continue
        rows = enumerate(zip(table.column(name), table.column(image), strict=True))
        pairs = {(value, named or row) for row, (value, named) in rows if value.strip()}
        values = {value for value, _ in pairs}
        if len(values) in {1, len(pairs)} or {value.casefold() for value in values} <= _ANSWERS:
            continue
        repeated = f"has {len(values):,} values for {len(pairs):,} images"
        flag = f"--data.group-column {shlex.quote(format_cell(name))}"
        if _GROUP.fullmatch(plain):
            raise DataError(
                f"Column '{format_cell(name)}' of {table.file} {repeated}, so images that belong "
                f"together may be trained on and tested. Set {flag} to keep them in one split, or "
                f"--data.group-column {NO_COLUMN} if equal values mean nothing."
            )
        notes.append(
            f"{table.file.name}: column '{format_cell(name)}' {repeated}, which are split one by "
            f"one ({flag} keeps equal values in one split)"
        )
    return notes


def _split_of_name(name: str) -> Split | None:
    """Return the split that the name of a column of 0 and 1 is about: `is_test`, `train`."""
    plain = _plain(name)
    start = _PREFIX.match(plain)
    return split_named(plain) or (split_named(plain[start.end() :]) if start else None)


def _usual(names: list[str], kind: str) -> str | None:
    """Return the column with the most usual name; None if no name is usual."""
    usual = _IMAGE_NAMES if kind == "image" else _LABEL_NAMES
    plain = {_plain(name): name for name in reversed(names) if name.strip()[-1:].isalnum()}
    return next((plain[name] for name in usual if name in plain), None)


def _choose_by_name(table: Table, names: list[str], kind: str) -> str:
    """Return the column with the most usual name."""
    found = _usual(names, kind)
    if found is None:
        what = "names the images" if kind == "image" else "holds the labels"
        raise DataError(
            f"It is not obvious which column of {table.file} {what}: "
            f"{first_few([*map(format_cell, table.names)], 20)}. Set --data.{kind}-column."
        )
    return found


def _are_image_files(table: Table, name: str) -> bool:
    values = [value for value in table.column(name) if value][:_LOOKED_AT]
    named = [PurePosixPath(value).suffix.lower() in IMAGE_SUFFIXES for value in values]
    return bool(named) and sum(named) > len(named) // 2


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
