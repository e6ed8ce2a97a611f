"""The preview shows the images that training sees."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.loader import training_batches
from patchline.pipeline.training.augmentation_preview import (
    preview_columns,
)
from patchline.pipeline.training.training_data import open_data
from tests.pipeline.training.trained_jobs import Make

EXAMPLE = Path(__file__).parents[3] / "examples" / "augmentation.yaml"


def test_each_column_shows_what_the_loader_yields(make: Make) -> None:
    """The images of an epoch are, pixel by pixel, those that training sees in it."""
    data = open_data(make(augmentation={"name": "standard"}))
    source, rows = data.training, data.preview_rows(5)
    columns = preview_columns(
        source.augment(), np.array(data.images[rows]), rows.tolist(), epochs=2
    )
    assert [column.title for column in columns] == ["original", "epoch 1", "epoch 2"]
    order = BatchOrder(source.rows, len(source.rows), source.seed, 0)
    batches = zip(islice(order, 2), training_batches(order, source, workers=0), strict=False)
    for column, (keys, (images, _)) in zip(columns[1:], batches, strict=True):
        places = [[row for _, row in keys].index(row) for row in rows]
        assert np.array_equal(column.images_NHWC, images[places].numpy())


@pytest.mark.parametrize(
    ("augmentation", "said"),
    [
        ({"name": "custom", "file": str(EXAMPLE)}, "custom runs on the CPU"),
        ({"name": "randaugment"}, ""),
        ({"name": "standard"}, ""),
    ],
    ids=["custom", "randaugment", "standard"],
)
def test_a_note_names_an_augmentation_that_a_gpu_cannot_compute(
    make: Make, augmentation: dict[str, str], said: str
) -> None:
    """Only where a GPU trains, and only of a plugin that cannot change images there."""
    data = open_data(make(augmentation=augmentation))
    assert said in data.note_on_augmentation(torch.device("cuda"))
    assert bool(data.note_on_augmentation(torch.device("cuda"))) == bool(said)
    assert not data.note_on_augmentation(torch.device("cpu"))
