"""The tables of a folder's splits as one: each names the images beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchline.plugin_api import DataError, split_named
from patchline.plugins.data_sources.cell_text import joined
from patchline.plugins.data_sources.table_reading import SPLIT, Table


class JoinedTables:
    """Tables in the folders of splits, one after the other; their paths begin with the folder.

    Args:
        folder: around the splits.
        tables: one for each split, with the same columns.

    Raises:
        DataError: if their columns differ.
    """

    def __init__(self, folder: Path, tables: Sequence[Table]) -> None:
        self.file, self.tables = folder, tables
        first, *others = tables
        for other in others:
            if set(other.names) != set(first.names):
                odd = sorted(set(other.names) ^ set(first.names))
                raise DataError(
                    f"{other.file} and {first.file} have different columns: {joined(odd)}. Give "
                    "both the same ones."
                )
        self.notes = [note for table in tables for note in table.notes]
        self.embedded: frozenset[str] = frozenset()
        self.class_names = first.class_names
        self._splits = [split_named(table.file.parent.name) for table in tables]
        has_split = SPLIT in first.names or not all(self._splits)
        self.names = [*first.names, *([] if has_split else [SPLIT])]
        self._has_split = has_split

    def column(self, name: str) -> list[str]:
        """Return the values of a column."""
        if name == SPLIT and not self._has_split:
            pairs = zip(self.tables, self._splits, strict=True)
            return [str(split) for table, split in pairs for _ in self._rows(table)]
        return [value for table in self.tables for value in table.column(name)]

    def paths(self, name: str) -> list[str]:
        """Return the values of the column of images, from the folder on."""
        return [
            value if not value.strip() or value.startswith("/") or ":" in value
            else f"{table.file.parent.relative_to(self.file).as_posix()}/{value}"
            for table in self.tables
            for value in table.column(name)
        ]  # fmt: skip

    def _rows(self, table: Table) -> list[str]:
        return table.column(table.names[0])
