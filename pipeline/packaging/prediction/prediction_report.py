"""A report on a table of predictions, in markdown: the version, the labels, the damaged images."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from patchline.pipeline.packaging.prediction.batch_prediction import PredictedTable
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.table_cells import plain_cell

_SETS = "labels"
"""The column of a multi-label model's labels."""
_PARSING = csv.ParseOptions(newlines_in_values=True)


def markdown(
    model: str, name: str, version: str, images: Path, out: Path, table: PredictedTable
) -> str:
    """Return the report.

    Args:
        model: the reference that was given, such as flowers@champion.
        name: the registered model's name.
        version: the version that the reference pointed to.
        images: the folder of the images.
        out: the file of the table.
        table: the content of the table.
    """
    labelled = table.images - table.unreadable
    text = render_markdown(
        "predictions.md.j2",
        __package__,
        model=model,
        name=name,
        version=version,
        images=images.resolve(),
        out=out.resolve(),
        table=table,
        labelled=labelled,
        counts=_counts(out) if labelled else [],
    )
    return text.removesuffix("\n")


def _counts(out: Path) -> list[tuple[str, int]]:
    """Return how many images got each label, the most frequent first.

    Of a multi-label model, an image counts for each of its labels; those without any come last.
    """
    is_multi_label = _SETS in _names(out)
    labels = _column(out, _SETS if is_multi_label else "label").drop_null()
    counts: list[dict[str, Any]] = pc.value_counts(labels).to_pylist()
    found: Counter[str] = Counter()
    without = 0
    for each in counts:
        text = plain_cell(each["values"])
        names = json.loads(text) if is_multi_label else [text]
        for name in names:
            found[name] += each["counts"]
        without += 0 if names else each["counts"]
    ranked = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    return [*ranked, *([("(no label)", without)] if without else [])]


def _names(out: Path) -> list[str]:
    if out.suffix == ".parquet":
        return list(parquet.read_schema(out).names)
    with csv.open_csv(out, parse_options=_PARSING) as reader:
        return list(reader.schema.names)


def _column(out: Path, name: str) -> pa.ChunkedArray:
    if out.suffix == ".parquet":
        return parquet.read_table(out, columns=[name])[name]
    columns = csv.ConvertOptions(
        include_columns=[name], column_types={name: "string"}, strings_can_be_null=True
    )
    return csv.read_csv(out, parse_options=_PARSING, convert_options=columns)[name]
