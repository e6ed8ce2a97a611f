"""Write the result of an inspection as one HTML page with pictures, in the design of the report."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task
from patchline.pipeline.data.labels.label_words import by_task
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.set_notes import set_words
from patchline.pipeline.evaluation.html_page import render, thumbnail
from patchline.pipeline.evaluation.inspection.finding import Finding, Inspection
from patchline.pipeline.evaluation.inspection.inspecting import Inspected
from patchline.pipeline.evaluation.inspection.terminal_report import (
    class_words,
    looks,
    most_frequent,
    verdict,
)
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workspace.files.atomic_files import write_text

_MOST_IMAGES, _MOST_DOUBTFUL, _MOST_GROUPS, _MOST_OF_GROUP = 12, 48, 6, 4
_MOST_NAMES, _MOST_CLASSES_OF_PAGE, _MOST_TOGETHER_OF_PAGE = 200, 500, 30
_TINY_SIDE = 48
_NOT_SHOWN = {"foreign", "unreadable", "truncated", "small_class"}
"""Kinds whose files cannot be shown, or need not be."""


class _Picture(NamedTuple):
    path: str
    label: str
    split: str
    detail: str
    picture: str
    """A data URI."""
    tiny: bool


class _PagedFinding(NamedTuple):
    """A finding with its pictures."""

    finding: Finding
    groups: list[list[_Picture]]
    """The pictures of each group of files that belong together; one group if there are none."""
    more: str
    """What the pictures leave out."""
    names: list[tuple[str, str]]
    """Files and what is special about them."""
    unnamed: int


def write_page(inspected: Inspected, file: Path) -> None:
    """Write the page: a single file without scripts, links to other files, or a network."""
    result = inspected.result
    rows = inspected.manifest.drop_duplicates("path").set_index("path")
    labels = sorted(result.classes, key=lambda label: -result.classes[label])
    text = render(
        "inspection.html.j2",
        result=result,
        title=f"{visible(result.name)}: data inspection",
        verdict=verdict(result),
        looks=looks(result),
        notes=[visible(note) for note in result.notes],
        findings=[_paged(finding, rows, inspected) for finding in result.findings],
        labels=[(label, visible(label) or "-") for label in labels[:_MOST_CLASSES_OF_PAGE]],
        more_classes=max(0, len(labels) - _MOST_CLASSES_OF_PAGE),
        most=max(result.classes.values(), default=1),
        in_classes=class_words(result),
        word=by_task(result.task),
        together=_pairs_of_labels(result),
    )
    write_text(file, text)


def _label(text: str, task: Task) -> str:
    return visible(set_words(text) if task == MULTI_LABEL else text)


def _pairs_of_labels(result: Inspection) -> list[tuple[str, list[tuple[int, float] | None]]]:
    """Return for each frequent label how many of its images have each of the others, and the share.

    None stands for the label itself; empty for single-label data.
    """
    if not any(result.co_occurrence.values()):
        return []
    shown = most_frequent(result, _MOST_TOGETHER_OF_PAGE)
    table = []
    for name in shown:
        counts = [result.co_occurrence[name].get(other, 0) for other in shown]
        cells = [
            None if other == name else (count, count / result.classes[name])
            for other, count in zip(shown, counts, strict=True)
        ]
        table.append((visible(name), cells))
    return table


def _paged(finding: Finding, rows: pd.DataFrame, inspected: Inspected) -> _PagedFinding:
    groups: list[list[_Picture]] = []
    more = ""
    if finding.kind not in _NOT_SHOWN:
        wanted = [group[:_MOST_OF_GROUP] for group in finding.groups[:_MOST_GROUPS]]
        left = len(finding.groups) - len(wanted)
        more = f"{left:,} more groups are in the table of findings." if left else ""
        if not finding.groups:
            most = _MOST_DOUBTFUL if finding.kind == "label_error" else _MOST_IMAGES
            wanted = [finding.files[:most]]
        details = finding.details
        shown = [
            [_picture(path, details.get(path, ""), rows, inspected) for path in group]
            for group in wanted
        ]
        groups = [pictures for group in shown if (pictures := [each for each in group if each])]
    return _PagedFinding(
        finding=finding,
        groups=groups,
        more=more,
        names=[
            (visible(path), visible(finding.details.get(path, "")))
            for path in finding.files[:_MOST_NAMES]
        ],
        unnamed=max(0, len(finding.files) - _MOST_NAMES),
    )


def _picture(path: str, detail: str, rows: pd.DataFrame, inspected: Inspected) -> _Picture | None:
    """Return an image with its caption; None if it cannot be read any more."""
    try:
        with root_image_bytes(inspected.root, path) as data:
            pixels = decode_image(data, 3, decode_jpeg, inspected.mapping)
    except UndecodableImageError:
        return None
    return _Picture(
        path=visible(path),
        label=_label(str(rows.loc[path, "label"]), inspected.result.task),
        split=str(rows.loc[path, "split"]),
        detail=visible(detail),
        picture=thumbnail(pixels),
        tiny=max(pixels.shape[:2]) <= _TINY_SIDE,
    )
