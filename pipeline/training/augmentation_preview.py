"""Pictures of training images before and after augmentation, with MixUp and CutMix if they are on.

Each column after the first shows the images as training sees them in one epoch, except that they
are mixed with each other instead of with the other images of their batch.

Shapes: N images, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from patchline.pipeline.data.batches.augmentation import BuiltAugmentation
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.recipe.mixing import Mix, draw_mix, mix_images
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workspace.files.stored_images import StoredImages

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, Any]

GAP = 4
_SMALLEST_CELL = 64


@dataclass(frozen=True)
class Column:
    """The images of the preview in one epoch, or as they are stored."""

    title: str
    images_NHWC: Pixels
    mix: str = ""
    """How the images are mixed; empty if they are not."""


def preview_columns(
    augmentation: BuiltAugmentation,
    originals_NHWC: Pixels,
    rows: Sequence[int],
    epochs: int,
    mixing: TrainingConfig | None = None,
) -> list[Column]:
    """Return the stored images, then the images of each epoch.

    Args:
        augmentation: the run's augmentation.
        originals_NHWC: the stored images, uint8.
        rows: the rows of these images in the store.
        epochs: number of epochs to show.
        mixing: settings of MixUp and CutMix; None for neither.
    """
    columns = [Column("original", originals_NHWC)]
    rows_N = torch.tensor(rows)
    for epoch in range(epochs):
        loaded = augmentation.by_image(originals_NHWC.copy(), epoch, rows)
        images = augmentation.by_batch(torch.from_numpy(loaded), epoch, rows_N)
        height, width = images.shape[1:3]
        mix = draw_mix(mixing, augmentation.seed, epoch, height, width) if mixing else None
        if mix is not None:
            mixed = mix_images(images.permute(0, 3, 1, 2).float(), mix)
            images = mixed.round().to(torch.uint8).permute(0, 2, 3, 1)
        described = _describe(mix) if mix else ""
        columns.append(Column(f"epoch {epoch + 1}", images.numpy(), described))
    return columns


def _describe(mix: Mix) -> str:
    return f"{'MixUp' if mix.box is None else 'CutMix'} {mix.share:.0%}"


def draw_preview(job: TrainingJob, data: TrainingData) -> Path:
    """Write the picture of a training run into its folder, and return the file."""
    augmentation, rows = data.training.augment(), data.preview_rows()
    grid = preview_grid(augmentation, data.images, rows, mixing=job.config.training)
    picture = job.folder / "augmentation_preview.png"
    cv2.imwrite(str(picture), grid[:, :, ::-1])
    return picture


def preview_grid(
    augmentation: BuiltAugmentation,
    images: StoredImages,
    rows: Integers,
    epochs: int = 8,
    mixing: TrainingConfig | None = None,
) -> Pixels:
    """Return one picture (H, W, 3): originals in the first column, then a column per epoch."""
    originals = np.array(images[rows])
    indices = [int(row) for row in rows]
    columns = preview_columns(augmentation, originals, indices, epochs, mixing)
    return np.concatenate([_stack(column) for column in columns], axis=1)


def _stack(column: Column) -> Pixels:
    """Return the images of a column below each other, with a white margin right and below."""
    cells = [
        np.pad(enlarge(image, _SMALLEST_CELL), ((0, GAP), (0, GAP), (0, 0)), constant_values=255)
        for image in column.images_NHWC
    ]
    return np.concatenate(cells, axis=0)


def enlarge(image_HWC: Pixels, smallest_side: int) -> Pixels:
    """Repeat each pixel, so that small images are visible and still sharp."""
    factor = max(1, smallest_side // image_HWC.shape[0])
    rgb = np.repeat(image_HWC, 3, axis=2) if image_HWC.shape[2] == 1 else image_HWC
    return np.repeat(np.repeat(rgb, factor, axis=0), factor, axis=1)
