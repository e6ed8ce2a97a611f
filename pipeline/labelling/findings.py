"""The findings of `patchline data inspect` on labels, to be corrected on the page.

The table of the corrections begins with the labels of the data, so that a run can train on it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.data.manifests.exclusion import PATH, table_of
from patchline.pipeline.data.manifests.label_task import is_labelled, task_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.files.table_cells import plain_cell
from patchline.pipeline.labelling.answer import DATA, Answer, labels_in
from patchline.pipeline.labelling.pool import Pool
from patchline.pipeline.labels.label_sets import Task
from patchline.plugin_api import ImageListing

FILE = "findings.csv"
KINDS = ("label_error", "label_conflict")


def label_findings(place: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels that the data has for each image whose label may be wrong, by path.

    Args:
        place: the table of findings, or the folder that it is in.

    Raises:
        DataError: if it cannot be read, or names no such image.
    """
    file = place / FILE if place.is_dir() else place
    try:
        _, rows = table_of(file.read_text(encoding="utf-8-sig"))
        found = [row for _, row in rows if row.get("kind") in KINDS]
        labels = {plain_cell(each[PATH]): labels_in(plain_cell(each["label"])) for each in found}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise DataError(
            f"The findings {file} cannot be read ({error}). Give the findings.csv of `patchline "
            "data inspect --check-labels MODEL`."
        ) from error
    if not labels:
        raise DataError(
            f"{file} has no findings on labels ({', '.join(KINDS)}). Run `patchline data inspect "
            "--check-labels MODEL` first."
        )
    return labels


class DataLabels(NamedTuple):
    """What the data says of its images."""

    task: Task
    answers: list[Answer]
    columns: dict[str, list[str]]
    """The splits and the groups of the data, if it has some."""


def data_labels(listing: ImageListing, pool: Pool) -> DataLabels:
    """Return the labels that a source lists for the images of a pool."""
    images = {image.name: image for image in pool.images.values()}
    listed = [each for each in listing.images if each.path in images and is_labelled(each)]
    answers = [
        Answer(
            images[each.path].path,
            "label",
            (each.label,) if each.labels is None else tuple(sorted(each.labels)),
            source=DATA,
        )
        for each in listed
    ]
    columns: dict[str, list[str]] = {
        "split": [each.split or "" for each in listed],
        "group": [each.group or "" for each in listed],
    }
    return DataLabels(
        task_of(listing),
        answers,
        {name: cells for name, cells in columns.items() if any(cells)},
    )
