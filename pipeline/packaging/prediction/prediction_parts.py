"""Unfinished predictions: parts of the table in a folder beside it, so that little can be lost.

`OUT.parts/` holds `state.json`, which describes the predictions, one Parquet file for every few
thousand images, and the log of the finished ones. A killed process loses at most the part that it
was filling, and the next one resumes after the finished parts. At the end the parts are copied one
by one into OUT and removed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic import ValidationError

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.prediction.image_files import ImageFile, Place, place
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.files.resumable_work import FinishedPieces, Piece
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.table_cells import table_cell

_STATE_FILE, _LOG_FILE, _LOCK_FILE = "state.json", "finished.jsonl", "lock"
_MERGED_FILE = "merged"
_ATTEMPT = b"attempt"
"""In a part's metadata: where the process that wrote it began."""
_PART_SECONDS = 15.0
ARGUMENT = pa.field("argument", pa.int32())
"""The column of a part with the index of the path that an image belongs to."""
VERSION = pa.field("file_version", pa.string())
"""The column of a part with size and modification time of the file that was predicted."""
_OWN = (ARGUMENT, VERSION)
_LISTED_ERRORS = 20


class PredictionState(FrozenModel):
    """What the parts in a folder are predictions of; a different command may not add to them."""

    model: str
    """Name and version of the model, and the identity of its files."""
    images: tuple[str, ...]
    """Paths of the images, as given."""
    top_k: int
    probabilities: bool
    coverage: float | None = None
    """Nominal coverage of the prediction sets; None for the package's own."""


class _Done(NamedTuple):
    """A row of a part; compared by place, then by age."""

    place: Place
    row: int
    version: str


class Totals(NamedTuple):
    """The content of a finished table."""

    images: int
    unreadable: int
    first_errors: tuple[tuple[str, str], ...]
    """Names and reasons of the first twenty images that could not be read."""


class PredictionParts:
    """The parts of one table, locked by this process; created by `open_parts`.

    A part is a range of rows, in the order in which they were predicted. A file that has changed
    since is predicted again, and only the last of its rows counts.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows: int) -> None:
        self._folder, self._schema, self._rows = folder, schema, rows
        self._finished = FinishedPieces(
            folder / _LOG_FILE,
            lambda part: digest_of(self._file_of(part)).sha256,
            "unfinished predictions",
        )
        self._parts = [part for part in self._finished.intact() if self._has_versions(part)]
        self._finished.keep(self._parts)
        _remove_files(folder, but={self._file_of(part).name for part in self._parts})
        self._next = max((part.stop for part in self._parts), default=0)
        self._attempt = str(self._next).encode()
        self._pending: list[pa.Table] = []
        self._last = time.monotonic()
        self.changed = 0
        """Files that the last `without_done` has yielded because they have changed since an earlier
        call."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a part: argument and version of the file, then those of the table."""
        metadata = {**(self._schema.metadata or {}), _ATTEMPT: self._attempt}
        return part_schema(self._schema).with_metadata(metadata)

    def add(self, table: pa.Table) -> None:
        """Add rows; they are written as a part every few seconds, or when there are enough."""
        self._pending.append(table)
        rows = sum(len(each) for each in self._pending)
        if rows >= self._rows or time.monotonic() - self._last >= _PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows added since the last part.

        Raises:
            StorageError: if the disk is full or read-only; earlier parts are kept.
        """
        if self._pending:
            table = pa.concat_tables(self._pending)
            part = Piece(self._next, self._next + len(table))
            with replace_file(self._file_of(part)) as temporary:
                pyarrow.parquet.write_table(table, temporary)
            self._finished.add(part)
            self._parts.append(part)
            self._next, self._pending = part.stop, []
        self._last = time.monotonic()

    def without_done(self, files: Iterable[ImageFile]) -> Iterator[ImageFile]:
        """Yield the files that are in no part as they are now, with their versions.

        Args:
            files: the files, in the same order as in earlier calls.
        """
        self.changed = 0
        done = self._done()
        current = next(done, None)
        for file in map(ImageFile.with_version, files):
            while current is not None and current.place < file.place:
                current = next(done, None)  # its file was deleted; its prediction is kept
            version = None
            while current is not None and current.place == file.place:
                version, current = current.version, next(done, None)
            if version != file.version:
                self.changed += version is not None
                yield file

    def count(self) -> int:
        """Return the number of images in the parts."""
        return sum(part.rows for part in self._parts) - len(self._outdated())

    def merge(self, out: Path) -> Totals:
        """Copy all parts into one table, in the order in which they were written.

        Raises:
            StorageError: if the disk is full or read-only; the parts are kept.
        """
        self.flush()
        merged = self._folder / _MERGED_FILE
        with storage_errors(out):
            totals = self._copy(merged, as_csv=out.suffix == ".csv")
            merged.replace(out)
        return totals

    def remove(self) -> None:
        """Remove what this class has written, and the folder if nothing else is in it."""
        _clear(self._folder)
        (self._folder / _LOCK_FILE).unlink(missing_ok=True)
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _copy(self, merged: Path, *, as_csv: bool) -> Totals:
        images = errors = 0
        listed: list[tuple[str, str]] = []
        with _writer(merged, self._schema, as_csv=as_csv) as writer:
            for table in self._tables():
                writer.write_table(_safe_in_spreadsheets(table) if as_csv else table)
                images += len(table)
                errors += len(table) - table["error"].null_count
                if len(listed) < _LISTED_ERRORS and table["error"].null_count < len(table):
                    failed = table.select(["image", "error"]).drop_null().to_pylist()
                    listed += [(row["image"], row["error"]) for row in failed]
        return Totals(images, errors, tuple(listed[:_LISTED_ERRORS]))

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows in tables of one row group each."""
        waiting: list[pa.Table] = []
        outdated = np.array(sorted(self._outdated()), np.int64)
        for part in self._parts:
            first = part.first
            for batch in self._opened(part).iter_batches(self._rows, columns=self._schema.names):
                table = pa.Table.from_batches([batch]).cast(self._schema)
                here = ~np.isin(np.arange(first, first + len(table)), outdated)
                first += len(table)
                waiting.append(table if here.all() else table.filter(pa.array(here)))
                if sum(len(each) for each in waiting) >= self._rows:
                    yield pa.concat_tables(waiting)
                    waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _outdated(self) -> set[int]:
        """Return the rows whose file was predicted again."""
        if len(self._attempts()) < 2:  # noqa: PLR2004 - one process predicts no file twice
            return set()
        pairs = pairwise(self._done())
        return {before.row for before, after in pairs if before.place == after.place}

    def _done(self) -> Iterator[_Done]:
        """Yield all rows in order; those of one process are in order already."""
        return heapq.merge(*map(self._rows_of, self._attempts()))

    def _attempts(self) -> list[list[Piece]]:
        """Return the parts of each process."""
        attempts: dict[bytes, list[Piece]] = {}
        for part in self._parts:
            schema = pyarrow.parquet.read_schema(self._file_of(part))
            attempts.setdefault(schema.metadata[_ATTEMPT], []).append(part)
        return list(attempts.values())

    def _rows_of(self, parts: Iterable[Piece]) -> Iterator[_Done]:
        columns = [ARGUMENT.name, "image", VERSION.name]
        for part in parts:
            first = part.first
            for batch in self._opened(part).iter_batches(columns=columns):
                cells = zip(*(batch[name].to_pylist() for name in columns), strict=True)
                for row, (argument, name, version) in enumerate(cells, start=first):
                    yield _Done(place(argument, name), row, version)
                first += batch.num_rows

    def _has_versions(self, part: Piece) -> bool:
        """Return whether a part can be resumed after; earlier Patchlines have noted no versions."""
        return VERSION.name in pyarrow.parquet.read_schema(self._file_of(part)).names

    def _opened(self, part: Piece) -> pyarrow.parquet.ParquetFile:
        return pyarrow.parquet.ParquetFile(self._file_of(part))

    def _file_of(self, part: Piece) -> Path:
        return self._folder / f"{part.first:012}.parquet"


def part_schema(table: pa.Schema) -> pa.Schema:
    """Return the columns of a part of a table."""
    return pa.schema([*_OWN, *table], metadata=table.metadata)


@contextmanager
def open_parts(
    out: Path, state: PredictionState, schema: pa.Schema, *, rows: int, restart: bool
) -> Iterator[PredictionParts]:
    """Lock the folder of a table's parts, and resume or start over.

    Raises:
        ConfigError: if another process uses it, or it holds predictions of something else.
        StorageError: if the folder cannot be written to.
    """
    folder = parts_folder(out)
    with try_lock(folder / _LOCK_FILE) as locked:
        if not locked:
            raise ConfigError(
                f"{out} is being written by another process. Wait for it, or choose another --out."
            )
        with storage_errors(folder):
            if restart:
                _clear(folder)
            _check_state(folder, out, state)
            state.to_file(folder / _STATE_FILE)
        yield PredictionParts(folder, schema, rows)


def parts_folder(out: Path) -> Path:
    """Return the folder of a table's parts."""
    return out.with_name(f"{out.name}.parts")


def _check_state(folder: Path, out: Path, state: PredictionState) -> None:
    file = folder / _STATE_FILE
    if not file.exists():
        return
    remedy = f"Repeat the same command, choose another --out, or start {out} over with --restart."
    try:
        before = PredictionState.from_file(file)
    except ValidationError as error:
        raise ConfigError(f"{file} cannot be read. {remedy}") from error
    for key, now in state.model_dump().items():
        then = getattr(before, key)
        if then != now:
            raise ConfigError(
                f"{folder} holds unfinished predictions with {key} {_format(then)}, not "
                f"{_format(now)}. {remedy}"
            )


def _format(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _clear(folder: Path) -> None:
    """Remove all parts and their log."""
    (folder / _STATE_FILE).unlink(missing_ok=True)
    (folder / _LOG_FILE).unlink(missing_ok=True)
    _remove_files(folder, but=set())


def _remove_files(folder: Path, but: set[str]) -> None:
    """Remove all parts but these, and the incomplete files of a killed process."""
    (folder / _MERGED_FILE).unlink(missing_ok=True)
    for unfinished in [*folder.glob(".*.part"), *folder.glob("????????????.parquet")]:
        if unfinished.name not in but:
            unfinished.unlink()


def _safe_in_spreadsheets(table: pa.Table) -> pa.Table:
    """Return a table whose texts a spreadsheet shows instead of computing them."""
    columns = [
        pa.array([cell and table_cell(cell) for cell in table[field.name].to_pylist()], field.type)
        if pa.types.is_string(field.type)
        else table[field.name]
        for field in table.schema
    ]
    return pa.table(columns, schema=table.schema)


@contextmanager
def _writer(file: Path, schema: pa.Schema, *, as_csv: bool) -> Iterator[Any]:
    """Open a table for writing; it is complete once closed."""
    made = (
        pyarrow.csv.CSVWriter(file, schema)
        if as_csv
        else pyarrow.parquet.ParquetWriter(file, schema)
    )
    with made as writer:
        yield writer
