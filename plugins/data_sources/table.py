"""A table with one row for each image: CSV, TSV, JSON Lines, or Parquet, also in several files.

    image,label             or a Parquet file with the images themselves, as data-set hubs
    rose/1.jpg,rose         export them

Paths are relative to the table, absolute, or `file://` URLs. Names without a suffix are searched
for below the table's folder. Which columns to read is guessed if it is obvious.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.plugin_api import (
    TABLE_SUFFIXES,
    DataError,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    ListedImage,
    PluginConfig,
    SourceContext,
    Split,
    open_archive,
    stem_of,
    table_parts,
    valid_name,
)
from plugins.data_sources.embedded_images import extracted, image_names
from plugins.data_sources.table_columns import Columns, chosen_columns, splits_of
from plugins.data_sources.table_files import find_files
from plugins.data_sources.table_reading import ParquetTable, PartedTable, Table, read_table

_COMMON_NAMES = ("labels", "label", "train", "data", "metadata", "annotations", "images", "table")
_MOST_MISSING = 0.1
_NAMED = 3
_MOST_COLUMNS = 50
"""Of the columns that are kept beside the image and its label."""
_NO_LABEL = "has no label"


class TableConfig(PluginConfig):
    """Settings of the table."""

    image_column: str | None = None
    """Column with the images, or with their paths or names; by default guessed."""

    label_column: str | None = None
    """Column with the labels; by default guessed."""

    split_column: str | None = None
    """Column with train, validation or test; by default a column `split` with such values."""

    group_column: str | None = None
    """Column whose equal values stay in one split, such as a patient; by default none."""

    image_folder: str | None = None
    """Folder that relative paths start from; by default the table's folder."""

    mirror_symmetric: bool = True
    """Whether a mirrored image still shows its class; false for text or left-right views."""


class _Places(NamedTuple):
    """Where the images of all rows are."""

    root: Path
    paths: list[str | None]
    """None for a row without an image."""
    shown: list[str]
    """What the table says about each row's image."""
    missing: str
    """Why a row has no image."""
    notes: list[str]


class ImageTable:
    """List the images of a table."""

    def __init__(self, config: TableConfig, context: SourceContext) -> None:
        self.config = config
        self.path, self.work_dir = context.path, context.work_dir
        self.needs_labels = context.needs_labels

    def list_images(self) -> ImageListing:
        """Return one image for each row; raise `DataError` if the table cannot be used."""
        file = self._file()
        table = read_table(file)
        config = self.config
        columns = chosen_columns(
            table,
            config.image_column,
            config.label_column,
            config.split_column,
            config.group_column,
        )
        places = self._places(table, columns.image)
        listing = ImageListing(
            name=_name(file),
            root=places.root,
            mirror_symmetric=config.mirror_symmetric,
            notes=[*_guess_note(file, columns), *places.notes],
        )
        images, left_out, rows = _rows(table, columns, places, needs_labels=self.needs_labels)
        if not images:
            raise DataError(
                f"{file} gives no image a label in column '{columns.label}'. Choose another "
                "--data.label-column."
            )
        own = _own_columns(table, columns, rows)
        return replace(listing, images=images, left_out=left_out, columns=own)

    def _places(self, table: Table, image: str) -> _Places:
        if image in table.embedded and isinstance(table, ParquetTable | PartedTable):
            stored = table.column(image)
            names = image_names(stored)
            root = extracted(table, image, names, self.work_dir)
            there = set(open_archive(root).paths)
            if there:
                paths = [name if name in there else None for name in names]
                return _Places(root, paths, names, "the table holds no image for it", [])
        values = table.column(image)
        folder = self._folder(table.file)
        found = find_files(table.file, values, folder)
        missing = [value for value, path in zip(values, found.paths, strict=True) if path is None]
        if len(missing) > _MOST_MISSING * len(values):
            raise DataError(
                f"{len(missing):,} of {len(values):,} images named in column '{image}' of "
                f"{table.file} do not exist below {folder}: {_some(missing)}. Set "
                "--data.image-folder to the folder of the images, or choose another "
                "--data.image-column."
            )
        note = [found.note] if found.note else []
        return _Places(found.root, found.paths, values, "there is no such file", note)

    def _file(self) -> Path:
        if self.path is None:
            raise DataError("data.path is missing. Name the table.")
        file = Path(self.path).expanduser()
        if not file.exists():
            raise DataError(f"There is no table {file}. Check the path.")
        if table_parts(file):
            return file.resolve()
        if not file.is_file() or file.suffix.lower() not in TABLE_SUFFIXES:
            raise DataError(
                f"{file} is not a table that can be read. Use a file that ends in one of "
                f"{', '.join(TABLE_SUFFIXES)}."
            )
        return file.resolve()

    def _folder(self, table: Path) -> Path:
        if self.config.image_folder is None:
            return table if table.is_dir() else table.parent
        folder = Path(self.config.image_folder).expanduser()
        inside = table.parent / folder
        folder = inside if inside.is_dir() else folder
        if not folder.is_dir():
            raise DataError(
                f"data.image_folder is {folder}, which is not a folder. Give the folder that the "
                "table's paths start from."
            )
        return folder.resolve()


def _own_columns(table: Table, columns: Columns, rows: list[int]) -> dict[str, list[str]]:
    """Return the other columns of the table, for the rows whose images are listed."""
    others = [name for name in table.names if name not in {*columns[:4], *table.embedded}]
    found = {}
    for name in others[:_MOST_COLUMNS]:
        values = table.column(name)
        found[name] = [values[row] for row in rows]
    return found


def _rows(
    table: Table, columns: Columns, places: _Places, *, needs_labels: bool
) -> tuple[list[ListedImage], list[LeftOutFile], list[int]]:
    """Return the images, what is left out with the reason, and the row of each image."""
    labels = _labels(table, columns.label)
    splits = splits_of(table, columns.split, len(labels))
    groups: Sequence[str] = table.column(columns.group) if columns.group else [""] * len(labels)
    images: dict[str, ListedImage] = {}
    first_rows: dict[str, int] = {}
    left_out: dict[str, LeftOutFile] = {}
    for row, path in enumerate(places.paths):
        shown = path or places.shown[row] or f"row {row + 1}"
        if path is None or (needs_labels and not labels[row]):
            reason = places.missing if path is None else _NO_LABEL
            left_out[shown] = LeftOutFile(shown, reason, "damaged" if path is None else "foreign")
            continue
        image = ListedImage(path, labels[row], splits[row], groups[row] or None)
        first_rows.setdefault(path, row)
        if images.setdefault(path, image) != image:
            left_out[path] = LeftOutFile(path, _contradiction(images[path], image))
    left_out = {path: each for path, each in left_out.items() if not _is_kept(each, images)}
    kept = [path for path in images if path not in left_out]
    rows = [first_rows[path] for path in kept]
    return [images[path] for path in kept], list(left_out.values()), rows


def _is_kept(left_out: LeftOutFile, images: dict[str, ListedImage]) -> bool:
    """Return whether another row gives the image its label."""
    return left_out.reason == _NO_LABEL and left_out.path in images


def _contradiction(one: ListedImage, other: ListedImage) -> str:
    pairs: list[tuple[str, str | Split | None, str | Split | None]] = [
        ("labels", one.label, other.label),
        ("splits", one.split, other.split),
        ("groups", one.group, other.group),
    ]
    what, first, second = next(each for each in pairs if each[1] != each[2])
    return f"has two {what} in the table, {first or 'none'} and {second or 'none'}"


def _labels(table: Table, column: str) -> list[str]:
    """Return the label of each row; numbers are replaced by the names that the table gives."""
    values = [value.strip() for value in table.column(column)]
    names = table.class_names.get(column)
    if names is None:
        return values
    known = {str(number): name for number, name in enumerate(names)}
    return [known.get(value, "") for value in values]


def _guess_note(file: Path, columns: Columns) -> list[str]:
    if not columns.guessed:
        return []
    flags = "--data.image-column and --data.label-column choose others"
    return [f"{file.name}: {', '.join(columns.guessed)} ({flags})"]


def _some(values: list[str]) -> str:
    more = f" and {len(values) - _NAMED:,} more" if len(values) > _NAMED else ""
    return ", ".join(value or "(empty)" for value in values[:_NAMED]) + more


def _name(file: Path) -> str:
    """Return the name of the data; a folder tells more than a common name of a table."""
    stem = stem_of(file)
    return valid_name(file.parent.name if stem.lower() in _COMMON_NAMES else stem)


def _write_example(folder: Path) -> str:
    """Write six small images of two classes and a table that names them; return the table."""
    from PIL import Image

    lines = ["image,label"]
    for label, colour in (("dark", 60), ("light", 200)):
        for number in range(3):
            name = f"{label}-{number}.png"
            Image.new("RGB", (24, 16), (colour, colour, 80 * number)).save(folder / name)
            lines.append(f"{name},{label}")
    file = folder / "example.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


plugin = DataSourcePlugin(
    summary="A table (CSV, TSV, JSON Lines, Parquet) of images or their paths, with labels",
    paper="",
    config_class=TableConfig,
    build=ImageTable,
    example=_write_example,
)
