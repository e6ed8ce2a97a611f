"""Write the findings as a CSV table that can be edited and given back as `data.exclude`.

Its cells are safe to open in a spreadsheet (see `table_cells`), so a path in it may be written in
another way than in the manifest; both are compared in the form of the table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.manifests.exclusion import EXCLUDE, PATH, says_yes, table_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.table_cells import table_cell
from patchline.pipeline.inspection.finding import Finding, Inspection

KIND = "kind"
COLUMNS = [PATH, "split", "label", KIND, "severity", EXCLUDE, "detail"]
_MOST_NAMED = 3
Row = dict[str, str]


def write_table(result: Inspection, manifest: pd.DataFrame, file: Path) -> None:
    """Write a row for each finding and file; answers in an earlier table there are kept.

    A row of the earlier table that says yes stays if it is no longer found, because the file may be
    excluded already.

    Args:
        result: the findings.
        manifest: splits and labels of the files.
        file: the CSV file.

    Raises:
        DataError: if there is an earlier table that cannot be read.
    """
    earlier = earlier_rows(file)
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in _rows(result, manifest):
        answered = earlier.pop((row[PATH], row[KIND]), row)
        table.writerow({**row, EXCLUDE: answered.get(EXCLUDE, "")})
    for row in earlier.values():
        if says_yes(row.get(EXCLUDE, "")):
            table.writerow({name: row.get(name, "") for name in COLUMNS})
    write_text(file, text.getvalue())


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
            yield {
                PATH: table_cell(path),
                "split": split,
                "label": table_cell(str(label)) if label == label else "",  # noqa: PLR0124 - not NaN
                KIND: finding.kind,
                "severity": finding.severity,
                EXCLUDE: "yes" if path in excluded else "",
                "detail": table_cell(details.get(path, "")),
            }


def _details(finding: Finding) -> dict[str, str]:
    """Return what is special about each file, or the other files of its group."""
    details = dict(finding.details)
    for group in finding.groups:
        for path in group:
            others = [other for other in group[: _MOST_NAMED + 1] if other != path][:_MOST_NAMED]
            more = len(group) - 1 - len(others)
            details[path] = "like " + ", ".join(others) + (f" and {more} more" if more else "")
    return details
