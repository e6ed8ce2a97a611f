"""The input and the result of a worker that predicts a part of many images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.launcher import Resources

MODULE = "patchline.pipeline.packaging.prediction"
RESOURCES = Resources()
"""All cores of one machine: a packaged model computes on CPU cores alone."""
FEWEST_IMAGES = 500
"""With fewer images, a part is done before its worker would have started."""


class PredictionJob(FrozenModel):
    """The images of a part, and the packaged model."""

    onnx_file: Path
    description_file: Path
    model_id: str
    files: Path
    """Lines of JSON: the images in their order, with absolute paths."""
    archives: Annotated[tuple[Path, ...], SAME_PLACE] = ()
    """Those that images are in, absolute."""
    top_k: int
    whole: bool
    """Whether the rows have the probabilities of all classes, in a list."""
    spread: bool = False
    """Whether the rows have a column of probabilities for each label of a multi-label model."""
    coverage: float | None = None
    """Of the prediction sets; None for the package's own."""
    rows: Path
    """The Parquet file to write."""


class PredictedPart(FrozenModel):
    """What a worker has written."""

    images: int
    warning: str = ""
    """Which images have values outside of the range that the model was trained with."""
