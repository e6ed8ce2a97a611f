"""Tables as text: the columns of a CSV, TSV, JSON Lines or Parquet file.

Every value becomes text, and a missing value the empty text, so that labels such as `001` and `NA`
stay what they are. Of a Parquet file, only the columns that are asked for are read. Images inside
such a file are copied once into a tar file, which can be read in any order.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from patchline.plugin_api import (
    IMAGE_SUFFIXES,
    DataError,
    ReadingRules,
    Split,
    check_expansion,
    known_digest,
    made_once,
    split_named,
    table_parts,
)
from patchline.plugins.data_sources.table_formats import (
    cell_text,
    csv_columns,
    format_cell,
    open_text,
    workbook_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa

_IMAGES_AT_ONCE = 16
_PARQUET_ERRORS = (OSError, ValueError, TypeError, LookupError, NotImplementedError)
"""The classes that pyarrow's own errors derive from."""
_BYTES, _PATH = "bytes", "path"
SPLIT = "split"
_SPLIT_PART = re.compile(r"[^A-Za-z]")
"""Ends the name of a split in the name of a file."""


class Table(Protocol):
    """A table with a header."""

    file: Path
    names: list[str]
    """The columns that can be read as text or hold images."""
    embedded: frozenset[str]
    """Columns that hold the images themselves."""
    class_names: dict[str, list[str]]
    """The name of each number in a column of class numbers, by column."""
    notes: list[str]
    """What a person should know about how the table was read."""

    def column(self, name: str) -> list[str]:
        """Return the values of a column; of an embedded image, the path that is stored with it."""
        ...


class TextTable:
    """A table that is read as a whole."""

    def __init__(
        self, file: Path, columns: dict[str, list[str]], notes: Sequence[str] = ()
    ) -> None:
        self.file, self.notes = file, list(notes)
        self.names = list(columns)
        self.embedded: frozenset[str] = frozenset()
        self.class_names: dict[str, list[str]] = {}
        self._columns = columns

    def column(self, name: str) -> list[str]:
        """Return the values of a column."""
        return self._columns[name]


class ParquetTable:
    """A Parquet file, and what data-set hubs store in its metadata."""

    @property
    def parts(self) -> list[ParquetTable]:
        """The files of the table, in the order of its rows."""
        return [self]

    def __init__(self, file: Path) -> None:
        import pyarrow.parquet as pq
        from pyarrow import types

        self.file, self.notes = file, list[str]()
        with parquet_errors(file):
            self.schema: pa.Schema = pq.read_schema(file)
            self.rows: int = pq.read_metadata(file).num_rows
        if not self.rows:
            raise _no_rows(file)
        self.embedded = frozenset(
            field.name
            for field in self.schema
            if _is_binary(field.type)
            or (_has_field(field.type, _BYTES) and _is_binary(field.type.field(_BYTES).type))
        )
        self.names = [
            field.name
            for field in self.schema
            if field.name in self.embedded
            or not types.is_nested(field.type)
            or _is_list(field.type)
            or any(_has_field(field.type, name) for name in ("choices", "taxonomy"))
        ]
        self.class_names = _class_names(self.schema)

    def column(self, name: str) -> list[str]:
        """Return the values of a column; of an embedded image, the path that is stored with it."""
        import pyarrow.parquet as pq
        from pyarrow import types

        wanted = name
        if name in self.embedded:
            wanted = f"{name}.{_PATH}"
            if not _has_field(self.schema.field(name).type, _PATH):
                return [""] * self.rows
        values: list[str] = []
        with parquet_errors(self.file), pq.ParquetFile(self.file) as opened:
            for batch in opened.iter_batches(columns=[wanted]):
                column = batch.column(0)
                if name in self.embedded:
                    column = column.field(_PATH)
                if types.is_float32(column.type) or types.is_float16(column.type):
                    column = column.cast("string").cast("double")  # 0.1, not 0.10000000149
                values += map(cell_text, column.to_pylist())
                self._check_rows(name, len(values))
        return values

    def images(self, name: str) -> Iterator[bytes | None]:
        """Yield the image of each row, or None; only a few rows are in memory at a time."""
        import pyarrow.parquet as pq

        is_struct = _has_field(self.schema.field(name).type, _BYTES)
        wanted = f"{name}.{_BYTES}" if is_struct else name
        with (
            parquet_errors(self.file),
            pq.ParquetFile(self.file, buffer_size=1 << 20) as opened,
        ):
            count = 0
            for batch in opened.iter_batches(batch_size=_IMAGES_AT_ONCE, columns=[wanted]):
                column = batch.column(0)
                column = column.field(_BYTES) if is_struct else column
                count += len(column)
                for value in column:
                    yield value.as_py()
            self._check_rows(name, count)

    def _check_rows(self, name: str, count: int) -> None:
        """Refuse a file whose columns differ in length; the error is turned into a sentence."""
        if count != self.rows:
            raise ValueError(f"column {name} has {count} values for {self.rows} rows")


class JoinedTables:
    """Tables with the same columns, one after the other, in a folder.

    If all of them are named for splits, and none of their columns is called `split`, there is such
    a column.
    """

    def __init__(
        self, folder: Path, tables: Sequence[Table], splits: Sequence[Split | None]
    ) -> None:
        first = tables[0]
        self.file, self.tables = folder, tables
        self.notes = [note for table in tables for note in table.notes]
        self.embedded, self.class_names = first.embedded, first.class_names
        self._splits = splits if all(splits) and SPLIT not in first.names else []
        self.names = [*first.names, *([SPLIT] if self._splits else [])]

    def column(self, name: str) -> list[str]:
        """Return the values of a column; of an embedded image, the path that is stored with it."""
        if name == SPLIT and self._splits:
            named = zip(self._splits, self.tables, strict=True)
            return [str(split) for split, each in named for _ in each.column(each.names[0])]
        return [value for table in self.tables for value in table.column(name)]


class PartedTable(JoinedTables):
    """Parquet files in a folder; a split is told by `train-00000-of-00002.parquet`."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self.parts = [ParquetTable(file) for file in files]
        first, *others = self.parts
        for part in others:
            if part.schema.names != first.schema.names or part.class_names != first.class_names:
                raise DataError(
                    f"{part.file} has other columns or classes than {first.file.name} beside it "
                    f"({_list_types(part.schema)}; {_list_types(first.schema)}). Give one "
                    "of the files, or move the others away."
                )
        words = [_SPLIT_PART.split(part.file.name, maxsplit=1)[0] for part in self.parts]
        splits = [split_named(word) for word in words]
        if any(splits) and not all(splits) and SPLIT not in first.names:
            odd = self.parts[splits.index(None)].file
            known = self.parts[next(n for n, split in enumerate(splits) if split)].file
            raise DataError(
                f"{known.name} is named for a split, but {odd} beside it is not. Rename it, or "
                "move it away."
            )
        super().__init__(folder, self.parts, splits)


def read_table(file: Path, rules: ReadingRules) -> Table:
    """Read a table by its suffix, or the Parquet files of a folder as one.

    Args:
        file: the table.
        rules: the encoding of a text, and whether the first line of a CSV or TSV file names the
            columns.

    Raises:
        DataError: if it cannot be read, has no rows, or may or may not have a header.
    """
    suffix = file.suffix.lower()
    if file.is_dir():
        return PartedTable(file, table_parts(file))
    if suffix == ".parquet":
        return ParquetTable(file)
    notes: list[str] = []
    if suffix == ".xlsx":
        columns, notes = workbook_columns(file, rules.header)
        return _text_table(file, columns, notes)
    with open_text(file, rules.encoding) as opened:
        if suffix == ".json":
            columns = _columns_of(_records(file, opened))
        elif suffix in (".jsonl", ".ndjson"):
            columns = _columns_of(_json_lines(file, opened))
        else:
            columns, notes = csv_columns(file, opened, rules.header)
    return _text_table(file, columns, notes)


def _text_table(file: Path, columns: dict[str, list[str]], notes: list[str]) -> TextTable:
    if not columns or not next(iter(columns.values())):
        raise _no_rows(file)
    return TextTable(file, columns, notes)


def _no_rows(file: Path) -> DataError:
    return DataError(f"{file} has no rows. Write one row for each image.")


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Turn what pyarrow raises into one sentence."""
    try:
        yield
    except MemoryError as error:  # also of pyarrow, for absurd sizes in a damaged file
        raise DataError(
            f"{file} needs more memory than is available, or is damaged ({_one_line(error)}). Free "
            "memory, or write or download the file again."
        ) from error
    except _PARQUET_ERRORS as error:
        reason = _one_line(error)
        raise DataError(
            f"{file} is damaged, or is not a Parquet file ({reason}). Write or download it again."
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _json_lines(file: Path, opened: TextIO) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(opened, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Line {number} of {file} is not JSON ({error}). Write one object on each line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"Line {number} of {file} is not a JSON object. Write one object on each line."
            )
        yield row


def _records(file: Path, opened: TextIO) -> list[dict[str, Any]]:
    """Return the rows of a JSON list of objects."""
    try:
        rows = json.load(opened)
    except UnicodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON ({error}). Write it again.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"{file} is not a JSON list of objects. Write one object for each image, or set "
            "--data.source to coco or label_studio."
        )
    return rows


def _columns_of(rows: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    count = 0
    for row in rows:
        for name, value in row.items():
            values = columns.setdefault(name, [])
            values += [""] * (count - len(values))
            values.append(cell_text(value))
        count += 1
    return {name: [*values, *[""] * (count - len(values))] for name, values in columns.items()}


def _list_types(schema: pa.Schema) -> str:
    return ", ".join(map(format_cell, schema.names))


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _has_field(kind: pa.DataType, name: str) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind) and kind.get_field_index(name) >= 0)


def _is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists of texts or of whole numbers, such as several labels.

    The paths of a taxonomy are lists in a list.
    """
    from pyarrow import types

    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    inner = kind.value_type
    inner = inner.value_type if types.is_list(inner) else inner
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_integer(inner))


def _inner(feature: Any) -> Any:
    """Return what a list of `datasets` holds, in either way that it is described."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        return feature.get("feature")
    return feature


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of class numbers, as the library `datasets` writes them."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        inner = {name: _inner(feature) for name, feature in features.items()}
        found = {
            name: feature["names"]
            for name, feature in inner.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {
        name: [str(each) for each in names]
        for name, names in found.items()
        if isinstance(names, list) and name in schema.names
    }


def image_names(stored: list[str]) -> list[str]:
    """Return a distinct name for the image of each row.

    Args:
        stored: the paths that are stored with the images; empty where there is none.
    """
    relative = [_relative(path) for path in stored]
    for names in (relative, [name.rpartition("/")[2] for name in relative]):
        parts = (part for name in names for part in name.split("/"))
        is_hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
        if all(names) and len(set(names)) == len(names) and not is_hidden:
            return names
    digits = len(str(len(stored)))
    suffixes = (PurePosixPath(path).suffix.lower() for path in stored)
    return [
        f"{row:0{digits}d}{suffix if suffix in IMAGE_SUFFIXES else ''}"
        for row, suffix in enumerate(suffixes)
    ]


def extract_images(
    table: ParquetTable | PartedTable, column: str, names: list[str], work_dir: Path
) -> Path:
    """Return a tar file of the images in a column; rows without an image are not in it.

    Raises:
        DataError: if a Parquet file is damaged, or unpacks to much more than its own size.
        StorageError: if the disk is full or read-only.
    """
    digests = [known_digest(part.file, work_dir / "digests") for part in table.parts]
    digest = " ".join(digests)
    key = hashlib.sha256(f"{digest}\0{column}".encode()).hexdigest()[:32]

    def write(target: Path) -> None:
        remaining = iter(names)
        with tarfile.open(target, "w") as archive:
            for part in table.parts:
                written = 0
                # Not strict: the table checks the number of rows, after the last one.
                for image, name in zip(part.images(column), remaining, strict=False):
                    if image is None:
                        continue
                    written += len(image)
                    check_expansion(part.file, written)
                    member = tarfile.TarInfo(name)
                    member.size = len(image)
                    archive.addfile(member, io.BytesIO(image))
                    archive.members = []  # type: ignore[attr-defined]  # do not keep them all

    return made_once(work_dir / f"{key}.tar", write)


def _relative(path: str) -> str:
    path = path.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    is_absolute = path.startswith("/") or (parts and parts[0].endswith(":"))
    return parts[-1] if is_absolute and parts else "/".join(parts)
