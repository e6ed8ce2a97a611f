"""Write the findings as a CSV table that can be edited and given back as `data.exclude`.

Its cells are safe to open in a spreadsheet (see `table_cells`), so a path in it may be written in
another way than in the manifest; both are compared in the form of the table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.manifests.exclusion import EXCLUDE, PATH, STATUS, says_yes, table_of
from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.inspection.finding import Finding, Inspection
from patchline.pipeline.terminal_words import by_number, counted
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.table_cells import table_cell

KIND, DETAIL = "kind", "detail"
SUGGESTION = "suggestion"
"""Column with the answers that Patchline suggests; others in `exclude` are a person's."""
COLUMNS = [PATH, "split", "label", KIND, "severity", EXCLUDE, DETAIL, SUGGESTION]
_OF_COPIES = ("exact_duplicate", "leakage")
"""Kinds that suggest to exclude a file because others like it stay."""
_LIKE = "like "
_MOST_NAMED = 3
Row = dict[str, str]


def write_table(result: Inspection, manifest: pd.DataFrame, file: Path) -> list[str]:
    """Write a row for each finding and file; a person's answers in an earlier table are kept.

    So is a suggestion of the earlier table that is no longer found because its file is excluded
    already, as long as one of the files is there for which it can go. Other suggestions are those
    of this inspection.

    Args:
        result: the findings.
        manifest: splits, labels and status of the files.
        file: the CSV file.

    Returns:
        A note on files that an earlier table has excluded, and this one does not.

    Raises:
        DataError: if there is an earlier table that cannot be read.
    """
    earlier = earlier_rows(file)
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in _rows(result, manifest):
        before = earlier.pop((row[PATH], row[KIND]), row)
        answer = before.get(EXCLUDE, "") if _is_answer(before) else row[EXCLUDE]
        table.writerow({**row, EXCLUDE: answer})
    paths, status = manifest[PATH], manifest["status"]
    excluded = {table_cell(path) for path in paths[status == STATUS]}
    usable = {table_cell(_LIKE + path).removeprefix(_LIKE) for path in paths[status == "ok"]}
    dropped = []
    for row in earlier.values():
        if _stays(row, excluded, usable):
            table.writerow({name: row.get(name, "") for name in COLUMNS})
        elif says_yes(row.get(EXCLUDE, "")):
            dropped.append(row[PATH])
    write_text(file, text.getvalue())
    if not dropped:
        return []
    are = f"{counted(len(dropped), 'file')} {by_number(len(dropped), 'is', 'are')} no longer"
    return [f"{are} excluded by {file.name}, as the reason is gone: {examples(dropped)}"]


def _is_answer(row: Row) -> bool:
    """Return whether a person has written what the column `exclude` says.

    In a table without suggestions, which somebody may have written by hand, each row is an answer.
    """
    return SUGGESTION not in row or says_yes(row[SUGGESTION]) != says_yes(row.get(EXCLUDE, ""))


def _stays(row: Row, excluded: set[str], usable: set[str]) -> bool:
    """Return whether a row that is no longer found stays in the table.

    Args:
        row: of the earlier table.
        excluded: the files that are excluded, as cells.
        usable: the files that are used, as the column `detail` names them.
    """
    if SUGGESTION in row and _is_answer(row):
        return True
    if not says_yes(row.get(EXCLUDE, "")) or row[PATH] not in excluded:
        return False
    if SUGGESTION not in row or row.get(KIND) not in _OF_COPIES:
        return True
    others = re.sub(r" and \d+ more$", "", row.get(DETAIL, "").removeprefix(_LIKE))
    return not usable.isdisjoint(others.split(", "))


def earlier_rows(file: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of an earlier table, by path and kind; none if there is no such file.

    Raises:
        DataError: if it cannot be read, because its answers would be lost.
    """
    if not file.is_file():
        return {}
    try:
        return _answered(file.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"The findings would replace {file}, whose answers cannot be read ({error}). Save it "
            "as CSV in UTF-8, or move it away."
        ) from error


def _answered(text: str) -> dict[tuple[str, str], Row]:
    names, rows = table_of(text)
    missing = [name for name in (PATH, EXCLUDE) if name not in names]
    if missing and text.strip():
        raise ValueError(f"it has no column '{missing[0]}'")
    return {(row.get(PATH, ""), row.get(KIND, "")): row for _, row in rows}


def _rows(result: Inspection, manifest: pd.DataFrame) -> Iterator[Row]:
    """Yield a row for each finding and file, as it is written."""
    known = manifest.set_index("path")[["split", "label"]]
    known = known[~known.index.duplicated()]
    for finding in result.findings:
        excluded, details = set(finding.exclude), _details(finding)
        places = known.reindex(finding.files)
        rows = zip(finding.files, places["split"], places["label"], strict=True)
        for path, split, label in rows:
            suggestion = "yes" if path in excluded else ""
            yield {
                PATH: table_cell(path),
                "split": split,
                "label": table_cell(str(label)) if label == label else "",  # noqa: PLR0124 - not NaN
                KIND: finding.kind,
                "severity": finding.severity,
                EXCLUDE: suggestion,
                DETAIL: table_cell(details.get(path, "")),
                SUGGESTION: suggestion,
            }


def _details(finding: Finding) -> dict[str, str]:
    """Return what is special about each file, or the others of its group, first those to keep."""
    details, excluded = dict(finding.details), set(finding.exclude)
    for group in finding.groups:
        named = sorted(group, key=lambda path: path in excluded)[: _MOST_NAMED + 1]
        for path in group:
            others = [other for other in named if other != path][:_MOST_NAMED]
            more = len(group) - 1 - len(others)
            details[path] = _LIKE + ", ".join(others) + (f" and {more} more" if more else "")
    return details
