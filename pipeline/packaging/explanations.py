"""The visual guides of a run: its surest right and its worst wrong prediction of a test image.

They are extra: whatever goes wrong while they are written, the package is complete without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pipeline.models.model_description import ModelDescription
from pipeline.packaging.chosen_images import ChosenImage
from pipeline.visual_guide.explaining import ImageToExplain, subject_of, write_guide

logger = logging.getLogger(__name__)

_MOST_COVERED_PARAMETERS = 3_000_000
"""Larger models are too slow to run for each covered part of an image."""


def write_explanations(
    model: nn.Module,
    description: ModelDescription,
    images: np.ndarray[Any, np.dtype[np.uint8]],
    chosen: Sequence[ChosenImage],
    folder: Path,
    name: str,
) -> None:
    """Write a page for each chosen image; log a warning if that fails.

    Args:
        model: in evaluation mode.
        description: of the model, with its temperature.
        images: the prepared store.
        chosen: which images.
        folder: receives the pages.
        name: of the model, for the titles.
    """
    occlusion = sum(each.numel() for each in model.parameters()) <= _MOST_COVERED_PARAMETERS
    for each in chosen:
        try:
            pixels = np.array(images[each.row])
            image = ImageToExplain(Path(each.path).name, pixels, pixels, each.label)
            subject = subject_of(model, description, image, occlusion=occlusion)
            write_guide([subject], name, folder / f"{each.page}.html")
        except Exception:  # a plugin's model may do anything; the run goes without this page
            logger.warning("The prediction of %s could not be explained", each.path, exc_info=True)
