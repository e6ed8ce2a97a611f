"""The images that people may be asked about: of a folder, or findings of `patchline data inspect`.

The table of the corrections begins with the labels of the data, so that a run can train on it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.data.labels.answer_columns import DATA
from patchline.pipeline.data.labels.answers.answer import (
    Answer,
    labels_in,
    looks_like_list,
)
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.manifests.left_out import PATH, table_of
from patchline.pipeline.data.manifests.source_listing import is_labelled, task_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
from patchline.pipeline.workspace.files.folder_walk import walk_files
from patchline.pipeline.workspace.files.table_cells import plain_cell, table_cell
from patchline.plugin_api import ImageListing

_RANDOM_SHARE = 1 / 3
"""Of the images: those that only the random draws ask about. A run's validation and test splits are
made of them, and by default these take 30 %."""


class PoolImage(NamedTuple):
    """An image of the folder."""

    key: str
    """A key that stands for the image in addresses and requests, so that a path never does."""
    path: str
    """The path relative to the folder of the table, with forward slashes."""
    name: str
    """The path relative to the folder that is labelled."""
    file: Path


class Pool:
    """The images below a folder, sorted by name.

    Args:
        folder: the folder with the images.
        table_folder: the folder that the paths of answers are relative to.

    Attributes:
        images: the images by key; `use` replaces the whole table, so that a thread may hold on to
            it.
        by_path: the same ones.
        left_out: images whose names no table can hold.

    Raises:
        DataError: if there are none, or the folder cannot be opened.
    """

    def __init__(self, folder: Path, table_folder: Path) -> None:
        if not folder.exists():
            raise DataError(f"There is no folder {folder}. Check the path.")
        if not folder.is_dir():
            raise DataError(f"{folder} is a file. Give the folder of the images.")
        self.folder = folder.absolute()
        self._table_folder = table_folder.absolute()
        self.images: dict[str, PoolImage] = {}
        self.by_path: dict[str, PoolImage] = {}
        self.left_out: list[str] = []
        self.use(self.present())
        if not self.images:
            raise DataError(
                f"{folder} holds no images to label. Add images, or give another folder."
            )

    def present(self) -> list[PoolImage]:
        """Return the images that are in the folder at the moment, which may take a second."""
        left_out: list[str] = []
        images = list(self._walked(left_out))
        self.left_out = left_out
        return images

    def use(self, images: Sequence[PoolImage]) -> bool:
        """Use these images; return whether they are others than before."""
        changed = {image.key for image in images} != self.images.keys()
        self.images = {image.key: image for image in images}
        self.by_path = {image.path: image for image in images}
        return changed

    def _walked(self, left_out: list[str]) -> Iterator[PoolImage]:
        inside = self.folder == self._table_folder
        for name, entry in walk_files(self.folder, lambda _path, _error: None):
            if Path(name).suffix.lower() not in IMAGE_SUFFIXES:
                continue
            path = name
            if not inside:
                path = Path(os.path.relpath(self.folder / name, self._table_folder)).as_posix()
            if not _is_plain(path):
                left_out.append(name)
                continue
            key = hashlib.sha256(path.encode()).hexdigest()[:16]
            yield PoolImage(key, path, name, Path(entry.path))


def draw_at_random(
    keys: Iterable[str], seed: int, near: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], list[str]]:
    """Return a random third of the images, and the others, both in a random order.

    An image is in the same part, whatever other images there are, with the near duplicates of it.
    Only random draws ask about the third, so that those of it that are labelled are a random sample
    of all images at any time.

    Args:
        keys: keys of all images.
        seed: the seed of the draw.
        near: the near duplicates of images that have some.
    """
    near = near or {}
    sample: list[tuple[float, str]] = []
    others: list[tuple[float, str]] = []
    for key in keys:
        first = min((key, *near.get(key, ())))
        number = random.Random(f"{seed} {first}").random()  # noqa: S311 - statistics
        (sample if number < _RANDOM_SHARE else others).append((number, key))
    return [key for _, key in sorted(sample)], [key for _, key in sorted(others)]


def _is_plain(path: str) -> bool:
    """Return whether a table holds a path as it is."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return plain_cell(table_cell(path)) == path and "\n" not in path


FILE = "findings.csv"
KINDS = ("label_error", "label_conflict")


class LabelFindings(NamedTuple):
    """Images whose labels may be wrong."""

    labels: dict[str, tuple[str, ...]]
    """The labels in the data, by path, in the order of the findings."""
    task: Task
    """Whether the labels are written as lists."""

    @property
    def digest(self) -> str:
        """What tells these findings from others."""
        listed = json.dumps(sorted(self.labels.items()), ensure_ascii=False)
        return hashlib.sha256(listed.encode()).hexdigest()[:16]

    def of_pool(self, pool: Pool) -> dict[str, tuple[str, ...]]:
        """Return the labels of the images of a pool, by key.

        Paths of findings start from the folder that holds all of the data: the folder that is
        labelled, or one above it, such as that of a table.
        """
        by_file = {image.file: image.key for image in pool.images.values()}
        found: dict[str, tuple[str, ...]] = {}
        for root in (pool.folder, *pool.folder.parents):
            named = {root / path: given for path, given in self.labels.items()}
            here = {by_file[file]: given for file, given in named.items() if file in by_file}
            found = max(found, here, key=len)
        return found


def label_findings(place: Path) -> LabelFindings:
    """Return the images whose labels may be wrong, with the labels that the data has for them.

    Args:
        place: the table of findings, or the folder that it is in.

    Raises:
        DataError: if it cannot be read, or names no such image.
    """
    file = place / FILE if place.is_dir() else place
    if not file.is_file():
        raise DataError(
            f"There are no findings at {file}. Run `patchline data inspect --check-labels MODEL` "
            f"first, and give its {FILE}."
        )
    try:
        _, rows = table_of(file.read_text(encoding="utf-8-sig"))
        found = [row for _, row in rows if row.get("kind") in KINDS]
        cells = {plain_cell(each[PATH]): plain_cell(each["label"]) for each in found}
        labels = {path: labels_in(cell) for path, cell in cells.items()}
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
    are_lists = any(map(looks_like_list, cells.values()))
    return LabelFindings(labels, MULTI_LABEL if are_lists else SINGLE_LABEL)


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


def check_same_labels(data: DataLabels, labels: Mapping[str, tuple[str, ...]], pool: Pool) -> None:
    """Raise `DataError` unless the data gives the images of findings the labels that these have.

    The findings may be on a table, and the folders that its images are in may be no classes.

    Args:
        data: the labels that the data gives.
        labels: labels of the images that the findings name, by key.
        pool: the images.
    """
    own = {answer.path: answer.labels for answer in data.answers}
    for key, given in labels.items():
        image = pool.images[key]
        there = own.get(image.path, ())
        if there != given:
            raise DataError(
                f"the label of {image.name} is {_words(there)} there, and {_words(given)} in the "
                "findings."
            )


def _words(labels: tuple[str, ...]) -> str:
    return ", ".join(f"'{label}'" for label in labels) or "none"
