"""The findings of `patchline data inspect` on labels, to be corrected on the page."""

from __future__ import annotations

import csv
from pathlib import Path

from patchline.pipeline.data.manifests.exclusion import PATH, table_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.files.table_cells import plain_cell
from patchline.pipeline.labelling.answer import labels_in

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
