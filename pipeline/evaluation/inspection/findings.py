"""What an inspection found: kinds, how bad each is, and the table of findings that can be edited.

The cells of the table are safe to open in a spreadsheet (see `table_cells`), so a path in it may be
written in another way than in the manifest; both are compared in the form of the table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from pydantic import Field

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task
from patchline.pipeline.data.manifests.left_out import EXCLUDE, PATH, STATUS, says_yes, table_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.table_cells import table_cell

Kind = Literal[
    "foreign", "unreadable", "truncated", "wrong_extension", "unusual_mode", "size_outlier",
    "exact_duplicate", "near_duplicate", "leakage", "label_conflict", "label_error", "imbalance",
    "small_class", "empty_class", "dark", "blurred", "blank", "contradictory_rows", "missing_file",
    "refused_member", "similar_classes", "suspicious_class", "suspicious_labels",
    "value_range", "bands", "mirror_asymmetric",
    "no_label", "frequent_label", "implied_label", "rare_label_set",
    "augmented_copy", "color_profile", "unread_frames", "unreadable_profile",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""An error stops a run; a warning lowers the quality of the model or of its metrics."""
TITLES: dict[Kind, str] = {
    "foreign": "Files that are not images of a class",
    "unreadable": "Unreadable images",
    "truncated": "Truncated images",
    "contradictory_rows": "Rows that contradict each other",
    "missing_file": "Images that do not exist",
    "refused_member": "Members of the archive that are not read",
    "wrong_extension": "Wrong file extensions",
    "unusual_mode": "Unusual colour modes",
    "size_outlier": "Unusual sizes",
    "exact_duplicate": "Exact duplicates",
    "near_duplicate": "Near duplicates",
    "leakage": "Leakage between splits",
    "label_conflict": "Conflicting labels",
    "label_error": "Likely label errors",
    "imbalance": "Imbalanced classes",
    "small_class": "Small classes",
    "empty_class": "Empty classes",
    "similar_classes": "Classes with similar names",
    "suspicious_class": "Suspicious class names",
    "suspicious_labels": "Labels that are no classes",
    "mirror_asymmetric": "Classes that differ from their mirror images",
    "dark": "Dark images",
    "blurred": "Blurred images",
    "blank": "Blank images",
    "value_range": "Values of more than 8 bits",
    "bands": "Unclear bands",
    "no_label": "Images without labels",
    "frequent_label": "Labels on nearly every image",
    "implied_label": "Labels that never occur alone",
    "rare_label_set": "Labels that hardly ever meet",
    "augmented_copy": "Augmented copies",
    "color_profile": "Colour profiles that are not applied",
    "unreadable_profile": "Colour profiles that cannot be read",
    "unread_frames": "Frames and pages that are not read",
}


class Finding(FrozenModel):
    """Everything of one kind that was found."""

    kind: Kind
    severity: Severity
    count: int
    """Number of files, or of classes for findings about classes."""
    files: tuple[str, ...]
    """All files, as paths of the manifest; empty if the finding is about classes alone."""
    action: str
    """What Patchline does about it, and what the user can do."""
    title: str
    summary: str
    """What was found, in a sentence."""
    classes: tuple[str, ...] = ()
    """The classes that the finding is about, if it is about classes."""
    groups: tuple[tuple[str, ...], ...] = ()
    """The files that belong together, for duplicates, leakage and conflicting labels."""
    details: dict[str, str] = Field(default_factory=dict)
    """What is special about a file, by path."""
    exclude: tuple[str, ...] = ()
    """The files that are best excluded; the table of findings marks them so."""


def finding_on_classes(
    kind: Kind,
    severity: Severity,
    classes: Sequence[str],
    summary: str,
    action: str,
    files: Iterable[str] = (),
) -> Finding:
    """Return a finding that counts classes.

    Args:
        kind: what is wrong with them.
        severity: how bad it is.
        classes: names of the classes, sorted.
        summary: what was found, in a sentence.
        action: what Patchline does about it, and what the user can do.
        files: paths of the classes' files, if the finding is about these, too.
    """
    return Finding(
        kind=kind,
        severity=severity,
        count=len(classes),
        files=tuple(files),
        action=action,
        title=TITLES[kind],
        summary=summary,
        classes=tuple(classes),
    )


def finding_on_files(
    kind: Kind, severity: Severity, files: Sequence[str], summary: str, action: str, **more: Any
) -> Finding:
    """Return a finding that counts files.

    Args:
        kind: what is wrong with them.
        severity: how bad it is.
        files: paths of the files, as in the manifest.
        summary: what was found, in a sentence.
        action: what Patchline does about it, and what the user can do.
        more: other fields of the finding.
    """
    return Finding(
        kind=kind,
        severity=severity,
        count=len(files),
        files=tuple(files),
        action=action,
        title=TITLES[kind],
        summary=summary,
        **more,
    )


class Range(FrozenModel):
    """The smallest, the median and the largest value, in pixels."""

    min: int
    median: int
    max: int


class Sizes(Range):
    """The shorter sides of the images; widths and heights are listed beside them."""

    width: Range
    height: Range


class Inspection(FrozenModel):
    """The result of an inspection; its JSON is what `patchline data inspect --json` prints."""

    name: str
    """The source's name of the data."""
    images: int
    """Usable images."""
    files: int
    """All files, usable or not."""
    task: Task = SINGLE_LABEL
    """Whether an image has one class, or a set of labels."""
    classes: dict[str, int]
    """Usable images by class, or with each label of multi-label data."""
    splits: dict[str, int]
    """Usable images by split."""
    unlabelled: int = 0
    """Usable images of `data.unlabelled`, without copies; in no split."""
    class_splits: dict[str, dict[str, int]]
    """Usable images by class and split."""
    co_occurrence: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Usable images of multi-label data that have two labels, by each of these; without zeros."""
    set_sizes: dict[int, int] = Field(default_factory=dict)
    """Usable images of multi-label data, by their number of labels."""
    split_origin: str
    """Origin of the splits, in words."""
    sizes: Sizes | None
    """Sizes of the usable images; None if there are none."""
    modes: dict[str, int]
    """Usable images by color mode."""
    aspect_ratios: dict[str, int]
    """Usable images by shape: `square`, `landscape`, `portrait`."""
    fingerprint: str
    """The data's version."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """What a run would train and why, a line each; empty if nobody asked for the plan."""

    def worst(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]


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
        file: the CSV file, which may hold an earlier table.

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
    return [f"{are} excluded by {file.name}, as the reason is gone: {few_names(dropped, 3)}"]


def _is_answer(row: Row) -> bool:
    """Return whether a person has written what the column `exclude` says.

    In a table without suggestions, which somebody may have written by hand, each row is an answer.
    """
    return SUGGESTION not in row or says_yes(row[SUGGESTION]) != says_yes(row.get(EXCLUDE, ""))


def _stays(row: Row, excluded: set[str], usable: set[str]) -> bool:
    """Return whether a row that is no longer found stays in the table.

    Args:
        row: the row of the earlier table.
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
        return _read_answers(file.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"The findings would replace {file}, whose answers cannot be read ({error}). Save it "
            "as CSV in UTF-8, or move it away."
        ) from error


def _read_answers(text: str) -> dict[tuple[str, str], Row]:
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
