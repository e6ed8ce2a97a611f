"""Log images of a run under fixed keys, so that the MLflow UI compares runs side by side.

MLflow shows them as a grid with a slider over the steps. They are cut out of figures that the run
has already drawn. Shapes: height H, width W, channels C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation import plots
from patchline.pipeline.evaluation.multi_label.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.registry.browsing.charts import (
    AUGMENTATION,
    ERRORS,
    FALSE_NEGATIVES,
    FALSE_POSITIVES,
    UNCERTAIN,
)
from patchline.pipeline.registry.browsing.outcome import Outcome
from patchline.pipeline.workspace.tracking.tracking_store import client

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

PREVIEW_FILE = "augmentation_preview.png"
_PREVIEW_COLUMNS = 9
"""The original image, then eight epochs."""
_PREVIEW_STEPS = 6
_GALLERY_STEPS = 3
_STRIP = 4
"""Images per row in a step of the augmentation grid."""


class GridImage(NamedTuple):
    """One image of a grid."""

    key: str
    step: int
    pixels_HWC: Pixels


def log_grids(outcome: Outcome) -> None:
    """Log the image grids of a run."""
    store = client()
    for image in grid_images(outcome):
        store.log_image(
            outcome.run.run_id,
            image.pixels_HWC,
            key=image.key,
            step=image.step,
            synchronous=True,
        )


def grid_images(outcome: Outcome) -> Iterator[GridImage]:
    """Yield the images of the grids.

    Augmentation: step 0 shows the originals, step 1 the same images in the first epoch, and so on.
    Errors and least certain images, or false positives and negatives: step 0 shows the first six,
    step 1 the next six.
    """
    preview = outcome.trained.best.parent / PREVIEW_FILE
    if preview.exists():
        for step, pixels in enumerate(preview_steps(_read(preview))):
            yield GridImage(AUGMENTATION, step, pixels)
    report, folder = outcome.evaluated.report, outcome.evaluated.folder
    for key, images, name in _galleries(report):
        if images and (folder / name).exists():
            rows = plots.gallery_rows(len(images))
            for step, pixels in enumerate(_slices(_read(folder / name), rows)[:_GALLERY_STEPS]):
                yield GridImage(key, step, _stacked(pixels))


def _galleries(
    report: EvaluationReport | MultiLabelReport,
) -> tuple[tuple[str, Sized, str], ...]:
    """Return the key, the images and the plot of each gallery."""
    if isinstance(report, MultiLabelReport):
        return (
            (FALSE_POSITIVES, report.confident_false_positives, plots.FALSE_POSITIVES),
            (FALSE_NEGATIVES, report.confident_false_negatives, plots.FALSE_NEGATIVES),
        )
    return (
        (ERRORS, report.most_confident_errors, plots.ERRORS),
        (UNCERTAIN, report.least_certain, plots.UNCERTAIN),
    )


def preview_steps(preview_HWC: Pixels, most: int = _PREVIEW_STEPS) -> list[Pixels]:
    """Cut the preview into its epochs, each an image with four tiles per row."""
    columns = np.split(preview_HWC, _PREVIEW_COLUMNS, axis=1)
    side = columns[0].shape[1]  # a square tile: an image with its margin
    steps = []
    for column in columns[:most]:
        tiles = [column[top : top + side] for top in range(0, len(column), side)]
        blank = np.full_like(tiles[0], 255)
        tiles += [blank] * (-len(tiles) % _STRIP)
        strips = [
            np.concatenate(tiles[left : left + _STRIP], axis=1)
            for left in range(0, len(tiles), _STRIP)
        ]
        steps.append(np.concatenate(strips, axis=0))
    return steps


def _stacked(row_HWC: Pixels) -> Pixels:
    """Stack the left half of a row of images on its right half, because grid cells are square."""
    left, right = np.split(row_HWC[:, : row_HWC.shape[1] // 2 * 2], 2, axis=1)
    return np.concatenate([left, right], axis=0)


def _slices(picture_HWC: Pixels, rows: int) -> list[Pixels]:
    return [np.ascontiguousarray(part) for part in np.array_split(picture_HWC, rows, axis=0)]


def _read(file: Path) -> Pixels:
    from PIL import Image

    with Image.open(file, formats=("PNG",)) as image:
        return np.asarray(image.convert("RGB"))
