"""Input and output of the prediction worker: `EvaluationJob` and `PredictionResult`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.splits.folds import rows_of_fold
from patchline.pipeline.evaluation.robustness import AnyRobustness
from patchline.pipeline.evaluation.visual_guide.covering_result import CoveringTest, MapKind
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import Calibration
from patchline.pipeline.training.train_result import EnsembleResult
from patchline.pipeline.workers.worker_process import Worker

Array = np.ndarray[Any, Any]


class HeldOut(FrozenModel):
    """A model, and images of the training and validation splits that it was not trained on."""

    model_folder: Path
    fold: int | None = None
    """The fold of these images, counted from 1; None for the validation split."""
    folds: int = 0
    seed: int = 0
    """The split seed, which decides the folds."""
    calibration: Calibration | None = None
    """Calibration of the model, if it is a member of an ensemble; otherwise None."""

    def calibrated(self, logits_NK: Array) -> Array:
        """Return the logits as the ensemble averages them."""
        if self.calibration is None:
            return logits_NK
        return self.calibration.logits(logits_NK).astype(np.float32)

    def rows(self, table: pd.DataFrame) -> Array:
        """Return the numbers of these images among the usable rows of a manifest."""
        if self.fold is None:
            return np.flatnonzero(table["split"] == "validation")
        return rows_of_fold(table, self.fold, self.folds, self.seed)[1]


class Explanations(FrozenModel):
    """What was made, as far as it could be."""

    maps_file: Path | None = None
    """File with the map of each of the worst errors, and its row in the table of predictions."""
    maps_kind: MapKind = "attention"
    test: CoveringTest | None = None

    def maps(self) -> dict[int, Array]:
        """Return the map (h, w) of each of the worst errors, by its row in the predictions."""
        if self.maps_file is None:
            return {}
        with np.load(self.maps_file, allow_pickle=False) as stored:
            return dict(zip(stored["positions"].tolist(), stored["maps"], strict=True))


class ExplanationJob(FrozenModel):
    """What to find out about where a model looked."""

    name: str
    """Name of the model, for the titles of the pages."""
    seed: int
    """Seed of the random parts that the test covers."""
    folder: Path
    """Folder that receives the pages and the maps."""


class EvaluationJob(FrozenModel):
    """Input of the prediction worker."""

    model_folder: Path
    manifest_file: Path
    store: Path
    splits: tuple[str, ...]
    device: str
    file: Path
    """The table to write; it has logits, but no probabilities yet."""
    processes: int = 1
    """Number of processes that have trained on this machine: each had a GPU, which now predicts a
    part of the images. A CPU predicts all of them."""
    columns: tuple[str, ...] = ()
    """Columns of the data itself that the table keeps."""
    held_out: tuple[HeldOut, ...] = ()
    """Other models and more images, for the calibration of a model that was trained on these."""
    explained: ExplanationJob | None = None
    """What to find out about where the model looked."""
    seed: int = 0
    """Seed that draws the images whose features are kept, those that are corrupted, and the
    corruptions."""
    corrupted: int = 0
    """Number of test images to corrupt and predict, at most."""
    class_images: tuple[int, ...] = ()
    """Number of training images of each class, if the training balanced them: the logits then lose
    what that has added to them; those of an ensemble have lost it."""
    ensemble: EnsembleResult | None = None
    """What the members of an ensemble are calibrated with, if the model is one."""


class PredictionResult(FrozenModel):
    """The table that was written, and the duration in seconds."""

    file: Path
    images: int
    seconds: float
    explanations: Explanations = Explanations()
    features_file: Path | None = None
    """Features of some validation and test images by the final model; None if it has none."""
    robustness: AnyRobustness | None = None


EVALUATION = Worker("patchline.pipeline.evaluation", EvaluationJob, PredictionResult)
