"""After the folds: train again on all images, or make one model of the models of all folds.

The refit follows the plan of the first training, epoch for epoch, and ends where the best weights
of the first training were. There is no image left to validate on, so the last weights are kept.

Each member of an ensemble is calibrated on the images of its own fold, which it was not trained on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import units_of
from patchline.pipeline.data.store.opened_images import open_images
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelThresholds,
    fit_label_calibration,
    fit_label_thresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import fit_temperature
from patchline.pipeline.models.calibrated_models import Ensemble
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_description import Calibration
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.training.checkpoint import PREVIOUS
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.parts.fine_tuning import (
    NO_TIME,
    fit_head_first,
    is_too_late,
    read_fitted_head,
    why_enough,
)
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.recipe.optimizer import averages_itself
from patchline.pipeline.training.train_result import EnsembleResult, RefitResult, TrainResult
from patchline.pipeline.training.trained_model import provenance_of_job, save_model_of
from patchline.pipeline.training.training_data import class_labels
from patchline.pipeline.workers.event_log import EventWriter

_WEIGHTS = "weights"


class Refit(Training):
    """A training without validation, from a job to a result."""

    def refit(self) -> RefitResult:
        """Train to the end of the plan, and return the folder of the last weights."""
        self.train_to_the_end()
        folder = self.job.folder / _WEIGHTS
        if self.ranks.is_first:
            self._save(folder)
        return self.result_of(folder)

    def result_of(self, folder: Path) -> RefitResult:
        """Return the result of the finished training, with its weights in a folder."""
        state = self.state
        return RefitResult(
            weights=folder,
            images=len(self.data.training.rows),
            steps=state.step,
            epochs=state.step / self.length.steps_per_epoch,
            seconds=self.clock.elapsed,
            images_per_second=state.sums.total_images / max(state.training_seconds, 1e-9),
        )

    def _save(self, folder: Path) -> None:
        state = self.state
        (self.job.folder / PREVIOUS).unlink(missing_ok=True)
        if self.last_weights.count is None:
            save_model_of(self.job, state.average.model, folder)
        else:
            ends = range(self.length.steps_per_epoch, state.step, self.length.steps_per_epoch)
            steps = [*ends, state.step][-self.last_weights.count :]
            self.last_weights.save_average(steps, state.average.model, folder, self.data, self.job)

    def _validate(self, *, last: bool = False) -> None:  # noqa: ARG002 - as the loop calls it
        """Report the end of an epoch; called by the loop where other fits validate.

        It is no restart point: a refit that diverges restarts from the beginning.
        """
        self.step.finite.settle()
        state = self.state
        self._count_training_time(self.clock.read())
        if averages_itself(state.optimizer):
            state.average.take_averaged(state.model, state.optimizer)
        values = {
            "refit/loss": state.sums.mean_loss,
            **({"refit/accuracy": state.sums.accuracy} if self.step.counts_correct else {}),
            "refit/learning_rate": self.learning_rate,
            "refit/epoch": state.step / self.length.steps_per_epoch,
        }
        state.sums.next_epoch()
        if self.ranks.is_first:
            self.last_weights.add(state.step, state.average.model)
        self.events.write("metrics", step=state.step, values=values)
        self.clock.read()
        if self.checkpoints.is_due or not self.checkpoints.exist:
            self._write_checkpoint()


def fit_all_weights(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> TrainResult | RefitResult:
    """Train all weights, from a fitted head on if the settings ask for one.

    Args:
        job: the job of a fit, or of a refit.
        events: gets metrics and progress.
        ranks: the ranks that train together; by default, this process is alone.
    """
    if job.config.training.trainable == "head_then_all":
        job = fit_head_first(job, events, ranks)
        alone = (ranks is None or ranks.size == 1) and not job.part.refit
        if alone:
            fitted = read_fitted_head(job)
            enough = NO_TIME if is_too_late(job, fitted) else why_enough(job, fitted)
            if enough:
                events.write("note", message=enough)
                return fitted
    if job.part.refit:
        return Refit(job, events, ranks).refit()
    return Training(job, events, ranks).run()


Array = np.ndarray[Any, Any]
_BASIS = (
    "highest F1 on the training and validation images, each predicted by the model that was not "
    "trained on it"
)


def combine_members(job: TrainingJob, events: EventWriter) -> EnsembleResult:
    """Calibrate the models of the folds, and save them as one model."""
    began = time.monotonic()
    device = torch.device(choose_device(job.config.training, detect_machine()))
    make_repeatable(job.config.training.threads, device)
    images = open_images(job.store)
    rows = manifests.usable(manifests.load(job.manifest_file))
    models, logits, held = [], [], []
    for number, folder in enumerate(job.part.members, start=1):
        model, description = load_model(folder)
        part = job.part.model_copy(update={"fold": number, "folds": len(job.part.members)})
        _, held_out = part.rows(rows, job.config.data.split_seed)
        logits_NK = predict_logits(
            model.to(device), images, held_out, description.image, device=device
        )
        models.append(model.cpu())
        logits.append(logits_NK.numpy())
        held.append(rows.iloc[held_out])
        events.progress(number, len(job.part.members), "model")
    folder = job.folder / _WEIGHTS
    described = description.model_copy(update={"members": len(models), "run_id": job.run_id})
    labels = [class_labels(each["label"], job.classes, described.task) for each in held]
    if described.is_multi_label:
        fits, thresholds = _fit_to_sets(logits, [sets_NK for _, sets_NK in labels])
        found: dict[str, Any] = {"label_calibrations": fits, "thresholds": thresholds}
    else:
        balanced = job.config.training.class_balance != "none"
        class_images = manifests.class_images(rows, job.classes) if balanced else ()
        fits = tuple(
            fit_temperature(
                logits_NK,
                labels_N,
                groups=ImageGroups.of(units_of(each)),
                class_images=class_images,
            )
            for logits_NK, (labels_N, _), each in zip(logits, labels, held, strict=True)
        )
        found = {"calibrations": fits}
    ensemble = Ensemble(models, fits, len(job.classes))
    save_model(folder, ensemble, described, provenance_of_job(job))
    return EnsembleResult(weights=folder, seconds=time.monotonic() - began, **found)


def _fit_to_sets(
    logits: Sequence[Array], sets: Sequence[Any]
) -> tuple[tuple[Calibration, ...], LabelThresholds]:
    """Return the calibration of each member, and the thresholds.

    No image is left that no member was trained on. So the thresholds are those of the members, each
    on its own fold, as the thresholds of a model that is trained again are those of its folds.
    """
    fits = tuple(map(fit_label_calibration, logits, sets))
    probabilities = [
        fit.probabilities(logits_NK) for fit, logits_NK in zip(fits, logits, strict=True)
    ]
    thresholds = fit_label_thresholds(np.concatenate(probabilities), np.concatenate(sets))
    return fits, thresholds.model_copy(update={"basis": _BASIS})
