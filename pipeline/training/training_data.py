"""The images and labels of a training run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.data import manifest as manifests
from pipeline.data.loader import TrainingImages
from pipeline.data.prepared_store import Pixels, open_images
from pipeline.training.job import TrainingJob

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TrainingData:
    """The prepared images, their classes, and those that a training may see."""

    images: Pixels
    """All rows of the store, memory-mapped."""
    labels: Integers
    """Class index of every row of the store."""
    training: TrainingImages
    """The images to train on, with their augmentation."""
    validation_rows: Integers
    """Rows of the store to validate on; none when training on everything."""

    def preview_rows(self, limit: int = 8) -> Integers:
        """Return up to `limit` training rows, starting with one of each class."""
        return preview_rows(self.labels, self.training.rows, limit)


def open_data(job: TrainingJob) -> TrainingData:
    """Open the store and read the labels and splits from the manifest."""
    rows = manifests.usable(manifests.load(job.manifest_file))
    index = {label: number for number, label in enumerate(job.classes)}
    training_rows, validation_rows = job.part.rows(rows, job.config.data.split_seed)
    labels: Integers = rows["label"].map(index).to_numpy().astype(np.int64)
    training = TrainingImages(
        store=job.store,
        rows=training_rows,
        labels=labels,
        augmentation=job.config.augmentation,
        image=job.image,
        seed=job.config.seed,
    )
    return TrainingData(
        images=open_images(job.store),
        labels=labels,
        training=training,
        validation_rows=validation_rows,
    )


def preview_rows(labels: Integers, rows: Integers, limit: int = 8) -> Integers:
    """Return up to `limit` rows, starting with one of each class."""
    by_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    rounds = itertools.zip_longest(*(list(group[:limit]) for group in by_class))
    ordered = [row for one_round in rounds for row in one_round if row is not None]
    return np.array(ordered[:limit])
