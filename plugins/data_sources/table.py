"""A table with one row for each image: CSV, TSV, JSON Lines, or Parquet, also in several files.

    image,label             or a Parquet file with the images themselves, as data-set hubs
    rose/1.jpg,rose         export them

Paths are relative to the table, absolute, `file://` URLs, or addresses on an object store. Names
without a suffix are searched for below the table's folder. Which columns to read is guessed if it
is obvious.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from patchline.plugin_api import (
    TABLE_SUFFIXES,
    ConfigError,
    DataError,
    DataSourcePlugin,
    ImageListing,
    ReadingRules,
    SourceContext,
    answer_rules,
    are_answers,
    metadata_files,
    open_archive,
    split_named,
    stem_of,
    table_parts,
    valid_name,
)
from patchline.plugins.data_sources.source_files import example_images, existing_path, folder_of
from patchline.plugins.data_sources.table_columns import (
    NO_COLUMN,
    ColumnConfig,
    Columns,
    choose_columns,
)
from patchline.plugins.data_sources.table_files import find_files
from patchline.plugins.data_sources.table_formats import first_few, format_cell, join_names
from patchline.plugins.data_sources.table_reading import (
    JoinedTables,
    ParquetTable,
    PartedTable,
    Table,
    extract_images,
    image_names,
    read_table,
)
from patchline.plugins.data_sources.table_rows import Places, list_rows, own_columns


class SplitTables(JoinedTables):
    """Tables in the folders of splits, one after the other; their paths begin with the folder.

    Args:
        folder: the folder that holds those of the splits.
        tables: one for each split, with the same columns.

    Raises:
        DataError: if their columns differ.
    """

    def __init__(self, folder: Path, tables: Sequence[Table]) -> None:
        first, *others = tables
        for other in others:
            if odd := sorted(set(other.names) ^ set(first.names)):
                raise DataError(
                    f"{other.file} and {first.file} have different columns: {join_names(odd)}. "
                    "Give both the same ones."
                )
        super().__init__(folder, tables, [split_named(each.file.parent.name) for each in tables])
        self.embedded = frozenset()

    def paths(self, name: str) -> list[str]:
        """Return the values of the column of images, from the folder on."""
        return [
            value if not value.strip() or value.startswith("/") or ":" in value
            else f"{table.file.parent.relative_to(self.file).as_posix()}/{value}"
            for table in self.tables
            for value in table.column(name)
        ]  # fmt: skip


_SPLIT_WORD = re.compile(r"(?:^|[^a-z])(?:train|val|dev|test)", re.IGNORECASE)
_SUFFIXES = (".txt", ".lst", ".list")


def ask_about_lists(file: Path, images: Collection[str]) -> None:
    """Ask about lists that name images of a table, which has no column of splits.

    Args:
        file: the table, or the folder of its parts.
        images: the paths or names of its images.

    Raises:
        DataError: if there is such a list.
    """
    folder = file if file.is_dir() else file.parent
    lists = sorted(
        each
        for each in folder.iterdir()
        if each.suffix.lower() in _SUFFIXES and _SPLIT_WORD.search(each.stem) and each.is_file()
    )
    own = {name for image in images for name in _names(image)} if lists else set()
    for each in lists:
        lines = list(_lines(each))
        named = sum(bool(own.intersection(_names(line))) for line in lines)
        if 2 * named > len(lines):
            raise DataError(
                f"{file} has no column of splits, and {each.name} beside it lists {named:,} of its "
                f"{len(set(images)):,} images. Add a column split with train, validation and test, "
                f"or set --data.split-column {NO_COLUMN} to have Patchline split all of them."
            )


def _lines(file: Path) -> Iterator[str]:
    """Yield the first word of each line: a number of the class may follow the name."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check its permissions, or move it away."
        ) from error
    return (line.split()[0] for line in text.splitlines() if line.strip())


def _names(path: str) -> tuple[str, str]:
    """Return the file's name of a path, and that without its suffix."""
    plain = PurePosixPath(path.strip().replace("\\", "/"))
    return plain.name, plain.stem


_COMMON_NAMES = (
    "labels",
    "label",
    "train",
    "data",
    "metadata",
    "annotations",
    "images",
    "table",
    "_classes",
)
_MOST_MISSING = 0.1


class TableConfig(ColumnConfig):
    """Settings of the table."""

    image_column: str | None = None
    """Column with the images, or with their paths or names; by default guessed."""

    label_column: str | None = None
    """Column with the labels; by default guessed."""

    split_column: str | None = None
    """Column with train, validation or test, or of 0 and 1, such as is_test; none ignores all
    splits; by default a column with names of splits."""

    group_column: str | None = None
    """Column whose equal values stay in one split, such as a patient; none if there is none; by
    default a question where a column seems to be one."""

    image_folder: str | None = None
    """Folder that relative paths start from; by default the table's folder."""

    mirror_symmetric: bool | None = None
    """Whether a mirrored image still shows its class; false for text or left-right views; by
    default measured."""


class ImageTable:
    """List the images of a table."""

    def __init__(self, config: TableConfig, context: SourceContext) -> None:
        self.config, self.context = config, context

    def list_images(self) -> ImageListing:
        """Return one image for each row; raise `DataError` if the table cannot be used."""
        file, rules = self._file(), self.context.rules
        table = _table(file, rules)
        config = self.config
        columns = choose_columns(
            table, config, rules.label_columns, needs_labels=self.context.needs_labels
        )
        if self.context.needs_labels and columns.split is None and config.split_column is None:
            ask_about_lists(table.file, table.column(columns.image))
        places = self._places(table, columns.image)
        context = self.context
        if are_answers(table.names) and columns.label:
            rules = answer_rules(rules, table.column(columns.label))
            context = replace(context, rules=rules)
        listing = ImageListing(
            name=_name(file),
            root=places.root,
            mirror_symmetric=config.mirror_symmetric,
            notes=[*_guess_note(file, columns), *columns.notes, *places.notes],
        )
        images, left_out, rows, notes = list_rows(table, columns, places, context)
        if not images and not columns.label:
            raise DataError(
                f"{file} lists no image that exists. Choose another --data.image-column."
            )
        if not images:
            raise DataError(
                f"{file} gives no image a label in column '{format_cell(columns.label)}'. Choose "
                "another --data.label-column."
            )
        own = own_columns(table, columns, rows)
        notes = [*table.notes, *listing.notes, *notes]
        used = {label for image in images for label in (image.labels or (image.label,))}
        return replace(
            listing,
            images=images,
            left_out=left_out,
            columns=own,
            notes=notes,
            empty_classes=sorted({name.strip() for name in columns.labels} - used),
        )

    def _places(self, table: Table, image: str) -> Places:
        if image in table.embedded and isinstance(table, ParquetTable | PartedTable):
            stored = table.column(image)
            names = image_names(stored)
            root = extract_images(table, image, names, self.context.work_dir)
            there = set(open_archive(root).paths)
            if there:
                paths = [name if name in there else None for name in names]
                return Places(root, paths, names, "the table holds no image for it", [])
        values = table.paths(image) if isinstance(table, SplitTables) else table.column(image)
        folder = self._folder(table.file)
        inside, own = self.config.image_folder is None, f"{folder.name}/"
        if inside and all(each.startswith(own) for each in values if each.strip()):
            folder = folder if (folder / own).is_dir() else folder.parent  # which the paths name
        try:
            local = self.context.local_files(folder, values)
        except ConfigError as error:  # a cell begins like an address of a store, and is none
            raise DataError(f"{table.file} cannot be used: {error}") from error
        found = find_files(table.file, [local.get(value, value) for value in values], folder)
        missing = [
            value
            for value, path in zip(values, found.paths, strict=True)
            if path is None and value.strip()
        ]
        named = sum(bool(value.strip()) for value in values)
        if not named:
            raise DataError(
                f"Column '{format_cell(image)}' of {table.file} is empty. Choose another "
                "--data.image-column, or fill in the paths of the images."
            )
        if len(missing) > _MOST_MISSING * named:
            names = [format_cell(value) or "(empty)" for value in missing]
            raise DataError(
                f"{len(missing):,} of {named:,} images named in column '{format_cell(image)}' of "
                f"{table.file} do not exist below {folder}: {first_few(names)}. Set "
                "--data.image-folder to the folder of the images, or choose another "
                "--data.image-column."
            )
        return Places(found.root, found.paths, values, "there is no such file", found.notes)

    def _file(self) -> Path:
        file = existing_path(self.context.path, "the table", "table")
        if table_parts(file) or metadata_files(file):
            return file.resolve()
        if not file.is_file() or file.suffix.lower() not in TABLE_SUFFIXES:
            raise DataError(
                f"{file} is not a table that can be read. Use a file that ends in one of "
                f"{', '.join(TABLE_SUFFIXES)}."
            )
        return file.resolve()

    def _folder(self, table: Path) -> Path:
        base = table if table.is_dir() else table.parent
        remedy = "the folder that the table's paths start from"
        return folder_of(base, self.config.image_folder, "data.image_folder", remedy)


def _table(file: Path, rules: ReadingRules) -> Table:
    """Read a table, or those that a folder holds beside its images.

    Raises:
        DataError: if it cannot be read, or several tables are beside the same images.
    """
    if not file.is_dir() or table_parts(file):
        return read_table(file, rules)
    files = metadata_files(file)
    folders = [each.parent for each in files]
    twice = next((each for each in folders if folders.count(each) > 1), None)
    if twice is not None:
        names = [each.name for each in files if each.parent == twice]
        raise DataError(
            f"{twice} holds several tables of its images: {', '.join(names)}. Give one of them, or "
            "move the others away."
        )
    tables = [read_table(each, rules) for each in files]
    if folders == [file]:
        return tables[0]
    return SplitTables(file, tables)


def _guess_note(file: Path, columns: Columns) -> list[str]:
    if not columns.guessed:
        return []
    flags = "--data.image-column, --data.label-column and --data.split-column choose others"
    return [f"{file.name}: {', '.join(columns.guessed)} ({flags})"]


def _name(file: Path) -> str:
    """Return the name of the data; a folder tells more than a common name of a table."""
    stem = file.name if file.is_dir() else stem_of(file)
    return valid_name(file.parent.name if stem.lower() in _COMMON_NAMES else stem)


def _write_example(folder: Path) -> str:
    """Write six small images of two classes and a table that names them; return the table."""
    lines = ["image,label"]
    for number, (label, content) in enumerate(example_images()):
        (folder / f"{number}.png").write_bytes(content)
        lines.append(f"{number}.png,{label}")
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
