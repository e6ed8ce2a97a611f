"""A report on a table of predictions, in markdown: the version, the labels, the damaged images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyarrow import csv, parquet

from patchline.pipeline.files.table_cells import plain_cell
from patchline.pipeline.prediction.batch_prediction import PredictedTable

_MAX_LABELS = 30


def markdown(
    model: str, name: str, version: str, images: Path, out: Path, table: PredictedTable
) -> str:
    """Return the report.

    Args:
        model: the reference that was given, such as flowers@champion.
        name: of the registered model.
        version: that the reference pointed to.
        images: the folder.
        out: the table's file.
        table: what the table holds.
    """
    labelled = table.images - table.unreadable
    lines = [
        f"## {name}, version {version}",
        "",
        f"`{model}` was version **{version}** when this run started.",
        "",
        f"Predicted **{labelled}** of {table.images:,} images in `{images.resolve()}`.",
        f"The table is `{out.resolve()}`.",
    ]
    if labelled:
        lines += ["", "| label | images |", "|---|---:|"]
        counts = _counts(out)
        lines += [f"| {_cell(label)} | {count} |" for label, count in counts[:_MAX_LABELS]]
        if rest := counts[_MAX_LABELS:]:
            lines.append(f"| {len(rest)} more labels | {sum(count for _, count in rest)} |")
    if table.unreadable:
        counted = "1 image" if table.unreadable == 1 else f"{table.unreadable} images"
        lines += ["", f"### {counted} could not be read", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in table.first_errors]
        if more := table.unreadable - len(table.first_errors):
            lines.append(f"- and {more} more; see the column `error` of the table")
    return "\n".join(lines)


def _counts(out: Path) -> list[tuple[str, int]]:
    """Return how many images got each label, the most frequent first."""
    if out.suffix == ".parquet":
        labels = parquet.read_table(out, columns=["label"])["label"]
    else:
        columns = csv.ConvertOptions(
            include_columns=["label"], column_types={"label": "string"}, strings_can_be_null=True
        )
        parsing = csv.ParseOptions(newlines_in_values=True)
        labels = csv.read_csv(out, parse_options=parsing, convert_options=columns)["label"]
    counts: list[dict[str, Any]] = pc.value_counts(labels.drop_null()).to_pylist()
    return sorted(
        ((plain_cell(each["values"]), each["counts"]) for each in counts),
        key=lambda pair: (-pair[1], pair[0]),
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
