"""Write the findings as a CSV table that can be edited and given back as `data.exclude`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd

from pipeline.data.exclusion import EXCLUDE, PATH
from pipeline.files.atomic_files import write_text
from pipeline.inspection.finding import Finding, Inspection

COLUMNS = [PATH, "split", "label", "kind", "severity", EXCLUDE, "detail"]
_MOST_NAMED = 3


def write_table(result: Inspection, manifest: pd.DataFrame, file: Path) -> None:
    """Write a row for each finding and file; answers in an earlier table there are kept.

    Args:
        result: the findings.
        manifest: splits and labels of the files.
        file: the CSV file.
    """
    answers = _earlier_answers(file)
    known = manifest.set_index("path")[["split", "label"]]
    known = known[~known.index.duplicated()]
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for finding in result.findings:
        excluded, details = set(finding.exclude), _details(finding)
        places = known.reindex(finding.files)
        rows = zip(finding.files, places["split"], places["label"], strict=True)
        for path, split, label in rows:
            answer = "yes" if path in excluded else ""
            table.writerow(
                {
                    PATH: path,
                    "split": split,
                    "label": label,
                    "kind": finding.kind,
                    "severity": finding.severity,
                    EXCLUDE: answers.get((path, finding.kind), answer),
                    "detail": details.get(path, ""),
                }
            )
    write_text(file, text.getvalue())


def _details(finding: Finding) -> dict[str, str]:
    """Return what is special about each file, or the other files of its group."""
    details = dict(finding.details)
    for group in finding.groups:
        for path in group:
            others = [other for other in group[: _MOST_NAMED + 1] if other != path][:_MOST_NAMED]
            more = len(group) - 1 - len(others)
            details[path] = "like " + ", ".join(others) + (f" and {more} more" if more else "")
    return details


def _earlier_answers(file: Path) -> dict[tuple[str, str], str]:
    if not file.is_file():
        return {}
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return {(row[PATH], row["kind"]): row[EXCLUDE] or "" for row in csv.DictReader(opened)}
    except (OSError, ValueError, KeyError, csv.Error):
        return {}
