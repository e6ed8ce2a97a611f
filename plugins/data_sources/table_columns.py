"""Which columns of a table hold the images, the labels and the splits."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from patchline.plugin_api import IMAGE_SUFFIXES, DataError, Split, split_named
from patchline.plugins.data_sources.cell_text import shown
from patchline.plugins.data_sources.table_reading import Table

_IMAGE_NAMES = (
    "image", "img", "image_path", "img_path", "file_name", "filename", "file", "filepath",
    "file_path", "image_file", "path", "image_name", "image_id", "img_id", "imageid", "photo",
    "picture", "id",
)  # fmt: skip
_LABEL_NAMES = (
    "label", "class", "label_name", "class_name", "classname", "category", "target", "species",
    "breed", "variety", "diagnosis", "dx", "labels", "y", "tags", "classes", "categories",
    "choice", "choices",
)  # fmt: skip
_SPLIT_NAMES = ("split", "subset", "partition", "set", "phase", "fold_name", "usage")
_LOOKED_AT = 100
_SHOWN = 20


ABSENT = frozenset({"0", "0.0", "-1", "-1.0", "false"})
PRESENT = frozenset({"1", "1.0", "true"})
"""Cells of a column that stands for a label, in lower case."""
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
_PREFIX = re.compile(r"(?:is|in|for|was|use|used_for)_?(?=[a-z]{4})")


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


def chosen_columns(
    table: Table,
    image: str | None,
    label: str | None,
    split: str | None,
    group: str | None,
    *,
    needs_labels: bool = True,
    label_columns: Sequence[str] = (),
) -> Columns:
    """Return the columns that were given, and guess the others.

    Where no labels are needed, only a column that is named like one is taken for them.

    Raises:
        DataError: if a column does not exist, or cannot be guessed.
    """
    if label_columns and label is not None:
        raise DataError(
            f"data.label_column is '{shown(label)}', and data.label_columns names others. Give one "
            "of them."
        )
    for setting, name in (
        ("image_column", image), ("label_column", label), ("split_column", split),
        ("group_column", group), *(("label_columns", each) for each in label_columns),
    ):  # fmt: skip
        if name is not None and name not in table.names:
            raise DataError(
                f"data.{setting} is '{name}', but {table.file} has the columns {_listed(table)}. "
                "Choose one of them."
            )
    guessed = []
    taken = {name for name in (label, split, group, *label_columns) if name is not None}
    if image is None:
        image = _guessed_image(table, taken)
        guessed.append(f"images from '{shown(image)}'")
    found_split = split or _guessed_split(table, {image, label, group})
    taken |= {name for name in (image, found_split) if name is not None}
    labels = tuple(dict.fromkeys(label_columns))
    if label is None and not labels:
        if needs_labels:
            label, labels = _guessed_labels(table, taken)
        else:
            label = _possible_label(table, taken)
        if label:
            guessed.append(f"labels from '{shown(label)}'")
    if found_split != split:
        guessed.append(f"splits from '{shown(found_split or '')}'")
    return Columns(image, label or "", found_split, group, tuple(guessed), labels)


def splits_of(table: Table, name: str | None, rows: int) -> list[Split | None]:
    """Return the split of each row; None where the table gives none.

    Raises:
        DataError: if a value is not a name of a split.
    """
    if name is None:
        return [None] * rows
    values = table.column(name)
    unknown = sorted({value for value in values if value.strip() and not split_named(value)})
    if unknown:
        some = ", ".join(f"'{shown(value)}'" for value in unknown[:3])
        raise DataError(
            f"The split column '{shown(name)}' of {table.file} holds {some}. Use train, validation "
            "and test, or choose another data.split_column."
        )
    return [split_named(value) for value in values]


def _guessed_image(table: Table, taken: set[str]) -> str:
    names = [name for name in table.names if name not in taken]
    embedded = [name for name in names if name in table.embedded]
    if embedded:
        return embedded[0] if len(embedded) == 1 else _named(table, embedded, "image")
    like_files = [name for name in names if _are_image_files(table, name)]
    if len(like_files) == 1:
        return like_files[0]
    return _named(table, like_files or names, "image")


def _guessed_labels(table: Table, taken: set[str]) -> tuple[str, tuple[str, ...]]:
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
    if zero_one and almost:
        raise DataError(f"{_almost_words(table, almost)} Repair it, or name the columns to read.")
    return _named(table, with_classes or names, "label"), ()


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
        f"--data.label-columns {shlex.quote(shown(name))}" for name in likely[:_NAMED]
    )
    more = " …" if len(likely) > _NAMED else ""
    parts = []
    if odd:
        whose = "whose name says" if len(odd) == 1 else "whose names say"
        parts.append(
            f"{', '.join(map(shown, odd[:_NAMED]))} among them, {whose} something about the row"
        )
    if others:
        parts.append(f"others: {', '.join(map(shown, others[:_NAMED]))}")
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
    if name in _ABOUT_THE_ROW or (split_named(name) and not (vehicle and name == "train")):
        return True
    start = _PREFIX.match(name)
    rest = name[start.end() :] if start else ""
    return bool(rest) and (rest in _ABOUT_WORK or split_named(rest) is not None)


def _almost_zero_one(table: Table, name: str) -> str:
    """Return the value for which a column does not hold 0 and 1 alone; empty if it has others."""
    values = Counter(value.strip().casefold() for value in table.column(name))
    values.pop("", None)
    plain = Counter({value.removesuffix(".0"): count for value, count in values.items()})
    odd = {value: count for value, count in values.items() if value not in ABSENT | PRESENT}
    if not odd and {"0", "-1"} <= plain.keys():
        return "-1 beside 0"
    few = _MOST_ODD * sum(values.values())
    if not odd or sum(odd.values()) > few or not values.keys() & PRESENT:
        return ""
    value, count = max(odd.items(), key=lambda pair: pair[1])
    cells = f"{count:,} of {sum(values.values()):,} cells"
    return f"'{shown(value)}' in {cells}"


def _almost_words(table: Table, almost: dict[str, str]) -> str:
    """Say which columns would be of 0 and 1 but for some value."""
    some = [f"'{shown(name)}', which holds {odd}" for name, odd in list(almost.items())[:_NAMED]]
    more = f" and {len(almost) - _NAMED:,} more" if len(almost) > _NAMED else ""
    return f"{table.file.name} would have another column of 0 and 1 in {', '.join(some)}{more}."


def holds_zero_one(table: Table, name: str) -> bool:
    """Return whether a column says of each image whether it has a label; a cell may be empty."""
    values = {value.strip().casefold() for value in table.column(name)} - {""}
    plain = {value.removesuffix(".0") for value in values}
    return bool(values) and values <= ABSENT | PRESENT and not {"0", "-1"} <= plain


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


def _guessed_split(table: Table, taken: set[str | None]) -> str | None:
    for name in table.names:
        if name in taken or name in table.embedded or _plain(name) not in _SPLIT_NAMES:
            continue
        values = set(table.column(name)) - {""}
        if values and all(map(split_named, values)):
            return name
    return None


def _usual(names: list[str], kind: str) -> str | None:
    """Return the column with the most usual name; None if no name is usual."""
    usual = _IMAGE_NAMES if kind == "image" else _LABEL_NAMES
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in usual if name in plain), None)


def _named(table: Table, names: list[str], kind: str) -> str:
    """Return the column with the most usual name."""
    found = _usual(names, kind)
    if found is None:
        what = "names the images" if kind == "image" else "holds the labels"
        raise DataError(
            f"It is not obvious which column of {table.file} {what}: {_listed(table)}. Set "
            f"--data.{kind}-column."
        )
    return found


def _listed(table: Table) -> str:
    more = f" and {len(table.names) - _SHOWN} more" if len(table.names) > _SHOWN else ""
    return ", ".join(map(shown, table.names[:_SHOWN])) + more


def _are_image_files(table: Table, name: str) -> bool:
    values = [value for value in table.column(name) if value][:_LOOKED_AT]
    named = [PurePosixPath(value).suffix.lower() in IMAGE_SUFFIXES for value in values]
    return bool(named) and sum(named) > len(named) // 2


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
