"""Show the result of an inspection: in a terminal, or as one HTML page with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from patchline.pipeline.data.ingestion_notes import set_words
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, by_task
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.evaluation.html_page import render, thumbnail
from patchline.pipeline.evaluation.inspection.findings import SEVERITIES, Finding, Inspection
from patchline.pipeline.evaluation.inspection.inspecting import Inspected
from patchline.pipeline.terminal_words import counted, few_names, visible
from patchline.pipeline.workspace.files.atomic_files import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType


_MOST_CLASSES, _MOST_TOGETHER = 20, 8
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_DAMAGED = {
    "unreadable": ("unreadable file", "unreadable files"),
    "truncated": ("truncated image", "truncated images"),
    "contradictory_rows": ("image with contradictory rows", "images with contradictory rows"),
    "missing_file": ("missing file", "missing files"),
    "refused_member": ("refused member", "refused members"),
}
"""Findings on images that no run can use, with what the first line calls them."""


def terminal_report(result: Inspection) -> Iterator[RenderableType]:
    """Yield the overview, the classes, each finding, and the plan."""
    from rich.text import Text

    yield Text(_overview(result), style="bold")
    yield Text("\n".join(looks(result)) + "\n", style="dim")
    if result.classes:
        yield _classes(result)
        yield from _together(result)
    for note in result.notes:
        yield Text(f"note: {visible(note)}", style="dim")
    yield Text(f"\n{verdict(result)}\n", style="bold")
    if result.findings:
        yield _findings(result)
    if result.plan:
        yield Text("Suggested plan", style="bold")
        yield Text("\n".join(f"  {visible(line)}" for line in result.plan))


def verdict(result: Inspection) -> str:
    """Return the numbers of findings by severity: `1 error, 2 warnings`."""
    counts = [
        counted(count, severity)
        for severity in SEVERITIES
        if (count := len(result.worst(severity)))
    ]
    return ", ".join(counts) if counts else "No problem found."


def _overview(result: Inspection) -> str:
    named = set(result.classes) - {""}
    classes = f" {class_words(result)}" if named else ""
    images = f"{counted(result.images, 'image')}{classes}"
    return f"{visible(result.name)}: {'; '.join([images, *_describe_left_out(result)])}"


def class_words(result: Inspection) -> str:
    """Return how many classes or labels there are: `in 3 classes`, `with sets of 6 labels`."""
    words = by_task(result.task)
    where = "with sets of" if result.task == MULTI_LABEL else "in"
    return f"{where} {counted(len(result.classes), words.one, words.several)}"


def most_frequent(result: Inspection, most: int) -> list[str]:
    """Return the names of the most frequent classes or labels."""
    return sorted(result.classes, key=lambda label: (-result.classes[label], label))[:most]


def _describe_left_out(result: Inspection) -> list[str]:
    """Return what else there is: `1 unreadable file`, `2 other files`."""
    others = result.files - result.images
    parts = []
    for kind, (one, many) in _DAMAGED.items():
        if count := sum(len(each.files) for each in result.findings if each.kind == kind):
            parts.append(counted(count, one, many))
            others -= count
    return [*parts, counted(others, "other file")] if others > 0 else parts


def looks(result: Inspection) -> list[str]:
    """Return sizes, shapes and color modes, and where the splits come from, a line each."""
    if result.sizes is None:
        return ["No image can be read"]
    sides = (result.sizes.min, result.sizes.median, result.sizes.max)
    size = f"{sides[0]}" if sides[0] == sides[2] else f"{sides[0]} to {sides[2]}, median {sides[1]}"
    shapes = ", ".join(f"{count:,} {shape}" for shape, count in result.aspect_ratios.items())
    modes = ", ".join(f"{count:,} {mode}" for mode, count in result.modes.items())
    return [
        f"Shorter side: {size} pixels",
        f"Shapes: {shapes}",
        f"Colour modes: {modes}",
        f"Splits: {result.split_origin}",
    ]


def _classes(result: Inspection) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(by_task(result.task).one, overflow="fold", max_width=40)
    for name in (*result.splits, "images"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = sorted(result.classes, key=lambda label: -result.classes[label])
    for label in shown[:_MOST_CLASSES]:
        counts = [result.class_splits[label][name] for name in result.splits]
        table.add_row(visible(label) or "-", *(f"{each:,}" for each in (*counts, sum(counts))))
    if len(shown) > _MOST_CLASSES:
        table.add_row(f"and {len(shown) - _MOST_CLASSES:,} smaller ones")
    totals = [*result.splits.values(), result.images]
    if result.task == MULTI_LABEL and (without := result.set_sizes.get(0)):
        table.add_row("no label", *([""] * len(result.splits)), f"{without:,}")
    if len(shown) > 1:
        table.add_row("all", *(f"{each:,}" for each in totals), style="bold")
    return table


def _together(result: Inspection) -> Iterator[RenderableType]:
    """Yield how many images with the label of a row have the label of a column, too."""
    from rich.table import Table
    from rich.text import Text

    shown = most_frequent(result, _MOST_TOGETHER)
    if not any(result.co_occurrence.values()):
        return
    some = f", of the {len(shown)} most frequent ones" if len(result.classes) > len(shown) else ""
    yield Text(f"\nImages that have two labels{some}", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("label", overflow="fold", max_width=40)
    for name in shown:
        table.add_column(visible(name), justify="right", overflow="fold")
    for name in shown:
        others = result.co_occurrence[name]
        cells = ["-" if other == name else f"{others.get(other, 0):,}" for other in shown]
        table.add_row(visible(name), *cells)
    yield table


def _findings(result: Inspection) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in result.findings:
        text = Text(f"{finding.title} ({finding.kind})\n", style="bold")
        text.append(f"{visible(finding.summary)}\n", style="not bold")
        text.append(visible(finding.action), style="not bold italic")
        if finding.files:
            named = few_names(map(visible, finding.files), 3)
            text.append(f"\n{named}", style="not bold dim")
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), text)
    return table


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
    """The image as a data URI."""
    tiny: bool


def write_page(inspected: Inspected, file: Path) -> None:
    """Write the page: a single file without scripts, links to other files, or a network."""
    result = inspected.result
    rows = inspected.manifest.drop_duplicates("path").set_index("path")
    labels = sorted(result.classes, key=lambda label: -result.classes[label])
    text = render(
        "inspection.html.j2",
        package="patchline.pipeline.evaluation.inspection",
        result=result,
        verdict=verdict(result),
        looks=looks(result),
        findings=[(finding, _pictures(finding, rows, inspected)) for finding in result.findings],
        most_groups=_MOST_GROUPS,
        most_names=_MOST_NAMES,
        labels=labels[:_MOST_CLASSES_OF_PAGE],
        more_classes=max(0, len(labels) - _MOST_CLASSES_OF_PAGE),
        most=max(result.classes.values(), default=1),
        in_classes=class_words(result),
        word=by_task(result.task),
        together=most_frequent(result, _MOST_TOGETHER_OF_PAGE)
        if any(result.co_occurrence.values())
        else [],
    )
    write_text(file, text)


def _pictures(finding: Finding, rows: pd.DataFrame, inspected: Inspected) -> list[list[_Picture]]:
    """Return the pictures of each group of files that belong together; else one group."""
    if finding.kind in _NOT_SHOWN:
        return []
    most = _MOST_DOUBTFUL if finding.kind == "label_error" else _MOST_IMAGES
    wanted = [group[:_MOST_OF_GROUP] for group in finding.groups[:_MOST_GROUPS]]
    shown = [
        [_picture(path, finding.details.get(path, ""), rows, inspected) for path in group]
        for group in (wanted if finding.groups else [finding.files[:most]])
    ]
    return [pictures for group in shown if (pictures := [each for each in group if each])]


def _picture(path: str, detail: str, rows: pd.DataFrame, inspected: Inspected) -> _Picture | None:
    """Return an image with its caption; None if it cannot be read any more."""
    try:
        with root_image_bytes(inspected.root, path) as data:
            pixels = decode_image(data, 3, decode_jpeg, inspected.mapping)
    except UndecodableImageError:
        return None
    label = str(rows.loc[path, "label"])
    return _Picture(
        path=visible(path),
        label=visible(set_words(label) if inspected.result.task == MULTI_LABEL else label),
        split=str(rows.loc[path, "split"]),
        detail=visible(detail),
        picture=thumbnail(pixels),
        tiny=max(pixels.shape[:2]) <= _TINY_SIDE,
    )
