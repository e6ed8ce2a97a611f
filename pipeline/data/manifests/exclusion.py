"""Exclude images by a table, such as the edited findings of `patchline data inspect`.

The table is a CSV file with the columns `path` and `exclude`; other columns are ignored. A row
excludes the file at its path if `exclude` is yes. A run works with a copy of the table that is
named by its content, so resuming and repeating it exclude the same images.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.table_cells import table_cell
from patchline.pipeline.workspace.files.user_folders import expanded
from patchline.pipeline.workspace.files.workspace_folder import make_folder

PATH, EXCLUDE = "path", "exclude"
"""Columns of the table."""
STATUS = "excluded"
_YES, _NO = {"yes", "y", "true", "1", "x"}, {"", "no", "n", "false", "0"}
_LONGEST_FIELD = 1 << 24


class Exclusion(NamedTuple):
    """The files that a table excludes."""

    name: str
    """The file name of the table."""
    reasons: dict[str, str]
    """Why, by path."""
    text: str
    """The table."""

    def kept_copy(self, workspace: Path) -> Path:
        """Write a copy of the table that is named by its content, unless it exists."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        copy = workspace / "exclusions" / digest / self.name
        if not copy.is_file() or copy.read_text("utf-8") != self.text:
            with storage_errors(copy):
                make_folder(copy.parent)
            write_text(copy, self.text)
        return copy


def read_exclusion(file: Path) -> Exclusion:
    """Read a table of files to exclude.

    Raises:
        DataError: if it cannot be read, lacks a column, or has an answer that is not yes or no.
    """
    file = expanded(file, "data.exclude")
    setting = f"data.exclude is {file}"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{setting}, but there is no such file. Check the path.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{setting}, which cannot be read ({error}). Save it as CSV.") from error
    try:
        return Exclusion(file.name, _reasons(text, setting), text)
    except csv.Error as error:
        raise DataError(
            f"{setting}, which is not a CSV table ({error}). Save it as CSV."
        ) from error


def applied(
    setting: str | None, manifest: pd.DataFrame, workspace: Path, *, alone: bool
) -> tuple[pd.DataFrame, list[str], Path | None]:
    """Return the manifest without the files that `data.exclude` names, notes, and a copy of it.

    Args:
        setting: the value of `data.exclude`; None excludes nothing.
        manifest: of all files.
        workspace: receives the copy of the table.
        alone: whether there are no unlabelled images, to which `excluded_unlabelled` applies the
            rest of the table.

    Raises:
        DataError: if the table cannot be used.
    """
    if setting is None:
        return manifest, [], None
    excluded = read_exclusion(Path(setting))
    manifest, notes = with_exclusion(manifest, excluded, alone=alone)
    return manifest, notes, excluded.kept_copy(workspace)


def with_exclusion(
    manifest: pd.DataFrame, exclusion: Exclusion, *, alone: bool = True
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with the files of a table excluded, and notes on them; see `applied`.

    Files that an earlier run has excluded stay so.
    """
    written = {path: _written(path, exclusion.reasons) for path in manifest["path"]}
    cells = manifest["path"].map(written)
    here = cells.isin(exclusion.reasons)
    usable = here & (manifest["status"] == "ok")
    manifest = manifest.copy()
    manifest.loc[usable, "reason"] = cells[usable].map(exclusion.reasons)
    manifest.loc[usable, "status"] = STATUS
    count = int((here & (manifest["status"] == STATUS)).sum())
    notes = [f"{count:,} image{' was' if count == 1 else 's were'} excluded by {exclusion.name}"]
    absent = exclusion.reasons.keys() - set(written.values())
    return manifest, [*notes, *(_notes_on_absent(exclusion, absent) if alone else [])]


def excluded_unlabelled(
    unlabelled: pd.DataFrame, labelled: pd.DataFrame, exclusion: Exclusion
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest of the unlabelled images without the files of a table, and notes.

    A path that both manifests have means the labelled image.

    Args:
        unlabelled: manifest of the unlabelled images.
        labelled: manifest of the labelled ones.
        exclusion: the table.
    """
    of_labelled = {_written(path, exclusion.reasons) for path in labelled["path"]}
    others = {path: why for path, why in exclusion.reasons.items() if path not in of_labelled}
    rest = exclusion._replace(reasons=others)
    result, [note] = with_exclusion(unlabelled, rest, alone=False)
    here = {_written(path, others) for path in unlabelled["path"]}
    notes = [f"data.unlabelled: {note}"] if others.keys() & here else []
    return result, [*notes, *_notes_on_absent(exclusion, others.keys() - here)]


def _notes_on_absent(exclusion: Exclusion, paths: Iterable[str]) -> list[str]:
    absent = sorted(paths)
    if not absent:
        return []
    files = f"{len(absent):,} file{'' if len(absent) == 1 else 's'} of {exclusion.name}"
    are = "is" if len(absent) == 1 else "are"
    return [f"{files} {are} not in the data: {examples(absent)}"]


def _written(path: str, reasons: Mapping[str, str]) -> str:
    """Return a path as a table states it: as it is, or as a cell that is safe in a spreadsheet."""
    return path if path in reasons else table_cell(path)


def table_of(text: str) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return the names of a table's columns in lower case, and its rows with their line numbers."""
    csv.field_size_limit(_LONGEST_FIELD)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    names = [name.strip().lower() for name in next(lines, [])]
    return names, ((lines.line_num, dict(zip(names, cells, strict=False))) for cells in lines)


def says_yes(answer: str) -> bool:
    """Return whether an answer in the column `exclude` excludes the file."""
    return answer.strip().lower() in _YES


def _reasons(text: str, setting: str) -> dict[str, str]:
    names, rows = table_of(text)
    for needed in (PATH, EXCLUDE):
        if needed not in names:
            columns = f"its columns: {', '.join(names)}" if names else "it is empty"
            raise DataError(
                f"{setting}, which has no column '{needed}' ({columns}). Use the findings.csv "
                "of `patchline data inspect`."
            )
    reasons: dict[str, str] = {}
    for number, row in rows:
        answer = row.get(EXCLUDE, "").strip().lower()
        if says_yes(answer) and not row.get(PATH):
            raise DataError(
                f"{setting}, which has no path near line {number}. Write the path of the file to "
                "exclude, or remove the line."
            )
        if says_yes(answer):
            reasons.setdefault(row[PATH], row.get("kind", "") or "excluded by the table")
        elif answer not in _NO:
            raise DataError(
                f"{setting}, which says '{answer}' in the column '{EXCLUDE}' near line "
                f"{number}. Write yes or no."
            )
    return reasons


def _delimiter(text: str) -> str:
    """Return the character between the columns; some spreadsheets write semicolons."""
    first = text.partition("\n")[0]
    return max(",;\t", key=first.count)
