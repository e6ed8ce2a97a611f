"""The labels that people have given to the images of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels.answers.answers_table import table_labels
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.packaging.packaged_model import PackagedModel

LABELS_TABLE = "labels.csv"
"""In a folder of images: columns path and label, as `patchline label` writes them."""
LABEL_TABLES = r"labels(\.edited-[\d-]+)?\.csv"
"""It and those that `patchline label` keeps beside it."""
Labels = tuple[str, ...]
"""Of an image: its class, or any number of labels."""


class LabelsTable(NamedTuple):
    """The labels of a table."""

    by_path: dict[str, Labels]
    """Of a table in a folder: by the path in it; of a data source: by the place of the image."""
    problem: str = ""
    """Why there are none; empty if the table can be read, or there is none."""


def labels_table(folder: Path) -> LabelsTable:
    """Return what the table of a folder says, if there is one."""
    file = folder / LABELS_TABLE
    if not file.is_file():
        return LabelsTable({})
    try:
        return LabelsTable(table_labels(file))
    except DataError:
        return LabelsTable(
            {}, f"{file.name} cannot be read as a table with the columns path and label; repair it"
        )


def with_task_of(package: PackagedModel, config: RunConfig) -> RunConfig:
    """Return the settings of a data source, whose labels are read as those of a model."""
    data, task = config.data, MULTI_LABEL if package.is_multi_label else SINGLE_LABEL
    if data.task != AUTO:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"task": task})})


def listed_labels(config: RunConfig, workspace: Path) -> LabelsTable:
    """Return the labels that a data source lists.

    Args:
        config: its section `data` names the source.
        workspace: the folder `.patchline`.
    """
    try:
        listing = listing_of(config, workspace, labelled=True)
    except DataError as error:
        return LabelsTable({}, str(error).rstrip("."))
    by_place: dict[str, Labels] = {}
    for image in listing.images:
        labels = (image.label,) if image.labels is None else image.labels
        by_place[place_of(listing.root, image.path)] = labels
    return LabelsTable(by_place)


def place_of(root: Path, path: str) -> str:
    """Return where an image is: two listings of a source may have different roots."""
    return f"{root}/{path}"
