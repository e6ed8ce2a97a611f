"""What a run shows about why: maps of its worst errors, a test of such maps, and two whole pages.

They are extra: whatever goes wrong while they are made, the report is complete without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from patchline.pipeline.evaluation.galleries import ChosenImage
from patchline.pipeline.evaluation.prediction_job import ExplanationJob, Explanations
from patchline.pipeline.evaluation.tasks import TASKS
from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attention_maps,
    covering_test,
    label_maps,
)
from patchline.pipeline.evaluation.visual_guide.explaining import (
    ImageToExplain,
    subject_of,
    write_guide,
)
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.stored_images import StoredImages

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_LARGE_MODEL = 3_000_000
"""Parameters from which a model is too slow to be run hundreds of times."""
_TESTED_IMAGES, _TESTED_IMAGES_LARGE = 64, 12
_MAPS_FILE = "error_maps.npz"


def explain_predictions(
    job: ExplanationJob,
    model: nn.Module,
    description: ModelDescription,
    images: StoredImages,
    table: pd.DataFrame,
) -> Explanations:
    """Look at the test images of a table of predictions; log a warning about what fails.

    Args:
        job: what to find out.
        model: in evaluation mode, on the CPU.
        description: of the model, with its temperature.
        images: the prepared store, uint8 (M, H, W, C).
        table: calibrated predictions, with the column `row` of the store.
    """
    large = sum(each.numel() for each in model.parameters()) > _LARGE_MODEL
    task, test = TASKS[description.task], table[table["split"] == "test"]
    worst, labels = task.worst(task.predictions(test, description.classes), job.errors)
    explanations = Explanations()
    try:
        if len(worst):
            rows = test.iloc[worst]
            explanations = _error_maps(model, description, images, rows, labels, job.folder)
        tested = _spread(test["row"].to_numpy(), _TESTED_IMAGES_LARGE if large else _TESTED_IMAGES)
        pixels = [np.array(images[row]) for row in tested]
        covering = covering_test(model, description, pixels, job.seed)
        explanations = explanations.model_copy(update={"test": covering})
    except Exception:  # a plugin's model may do anything; the report goes without
        logger.warning("The maps of where the model looked could not be computed", exc_info=True)
    write_explanations(
        model,
        description,
        images,
        task.chosen(table, description.classes),
        job.folder,
        job.name,
        occlusion=not large,
    )
    return explanations


def _error_maps(
    model: nn.Module,
    description: ModelDescription,
    images: StoredImages,
    worst: pd.DataFrame,
    labels: Array | None,
    folder: Path,
) -> Explanations:
    pixels = [np.array(images[row]) for row in worst["row"]]
    maps = (
        attention_maps(model, description, pixels)
        if labels is None
        else label_maps(model, description, pixels, labels)
    )
    file = folder / _MAPS_FILE
    with open_replacing(file) as opened:
        np.savez(opened, positions=worst.index.to_numpy(np.int64), maps=maps.maps_Bhw)
    return Explanations(maps_file=file, maps_kind=maps.kind)


def _spread(rows: Array, most: int) -> Array:
    """Return at most so many rows, at equal distances."""
    chosen: Array = rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))]
    return chosen


def write_explanations(
    model: nn.Module,
    description: ModelDescription,
    images: StoredImages,
    chosen: Sequence[ChosenImage],
    folder: Path,
    name: str,
    *,
    occlusion: bool = True,
) -> None:
    """Write a page for each chosen image; log a warning if that fails.

    Args:
        model: in evaluation mode.
        description: of the model, with its temperature.
        images: the prepared store.
        chosen: which images.
        folder: receives the pages.
        name: of the model, for the titles.
        occlusion: whether to run the model for each covered part of an image.
    """
    for each in chosen:
        try:
            pixels = np.array(images[each.row])
            image = ImageToExplain(Path(each.path).name, pixels, pixels, each.label)
            subject = subject_of(model, description, image, occlusion=occlusion)
            write_guide([subject], name, folder / f"{each.page}.html")
        except Exception:  # as above: the run goes without this page
            logger.warning("The prediction of %s could not be explained", each.path, exc_info=True)
