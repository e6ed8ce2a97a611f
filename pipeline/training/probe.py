"""Train only the head: a linear probe on the frozen features of the initial weights.

Features are computed once for each image and kept in the workspace, so an interrupted run continues
with the next image, and a later run with the same weights and images begins with the fit.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pipeline.errors import RunError
from pipeline.models.model_files import save_model
from pipeline.probing.features import features_of, seconds_per_image
from pipeline.probing.linear_fit import FittedHead, fit_head
from pipeline.probing.linear_head import linear_head
from pipeline.training.best_weights import FINAL
from pipeline.training.device import make_repeatable
from pipeline.training.initial_model import description_of, initial_model
from pipeline.training.job import TrainingJob
from pipeline.training.machine import choose_device, look
from pipeline.training.precision import Chooser, choose_for_training
from pipeline.training.train_result import EpochRecord, ProbeRecord, TrainResult
from pipeline.training.training_data import Integers, TrainingData, open_data
from pipeline.workers.event_log import EventWriter

FEATURES_FOLDER = "features"
"""In the workspace."""
_TRAINING_IS_SLOWER = 3
_SECONDS_SHOWN = 90
_MINUTE = 60


@dataclass
class _Features:
    """The features of the images that a probe needs."""

    values_ND: np.ndarray
    """Memory-mapped."""
    rows: Integers
    """The row of the store of each feature, in ascending order."""

    def of(self, rows: Integers) -> np.ndarray:
        """Return the features of some rows of the store, in their order."""
        return np.asarray(self.values_ND[np.searchsorted(self.rows, rows)])


def probe(job: TrainingJob, events: EventWriter) -> TrainResult:
    """Fit the head of a job's model, and save the model.

    Raises:
        ConfigError: if the model has no linear head, or the initial weights do not fit it.
    """
    began, settings = time.monotonic(), job.config.training
    threads = make_repeatable(settings.threads)
    device = torch.device(choose_device(settings, look()))
    data = open_data(job)
    model = initial_model(job, data, events).to(device).eval()
    chooser = Chooser(job.config, job.image, len(job.classes), model, job.workspace)
    precision = choose_for_training(chooser, job.folder, events)
    head = linear_head(model, len(job.classes), job.image)
    features, seconds = _features(job, data, model, head, precision.name, events)
    fitted = _fitted(job, data, features, events)
    _set_head(head, fitted)
    folder = job.folder / FINAL
    save_model(folder, model, description_of(job))
    record = _record(data, features, fitted, seconds)
    values = {**record.metric_values(), "probe/regularization": fitted.regularization}
    events.write("metrics", step=len(fitted.tried) + 1, values=values)
    return TrainResult(
        best=folder,
        best_step=record.step,
        best_epoch=record.epoch,
        best_validation_accuracy=record.validation_accuracy,
        steps=record.step,
        epochs=record.epoch,
        seconds=time.monotonic() - began,
        images_per_second=record.images_per_second / _TRAINING_IS_SLOWER,
        step_plan=((0, 0.0, record.step),),
        precision=precision.name,
        precision_reason=precision.reason,
        device=device.type,
        threads=threads,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        stopped_because=f"the head was fitted; regularization C {fitted.regularization:g}",
        history=(record,),
        probe=ProbeRecord(
            regularization=fitted.regularization,
            features=head.in_features,
            images=len(features.rows),
            features_seconds=seconds,
        ),
    )


def _features(
    job: TrainingJob,
    data: TrainingData,
    model: nn.Module,
    head: nn.Linear,
    precision: str,
    events: EventWriter,
) -> tuple[_Features, float]:
    """Return the features of all training and validation images, and the seconds it took."""
    rows = np.union1d(data.training.rows, data.validation_rows)
    device = next(model.parameters()).device
    folder = (job.workspace or job.folder) / FEATURES_FOLDER / _key(job, rows, precision, device)
    began = time.monotonic()
    if not folder.exists():
        each = seconds_per_image(model, data.images, rows, job.image, device, precision)
        events.write("note", message=f"computing features takes {_about(each * len(rows))}")
    values_ND = features_of(
        model,
        head,
        data.images,
        rows,
        job.image,
        folder,
        device=device,
        precision=precision,
        on_progress=lambda done, total: events.progress(done, total, "features"),
    )
    return _Features(values_ND, rows), max(time.monotonic() - began, 1e-9)


def _key(job: TrainingJob, rows: Integers, precision: str, device: torch.device) -> str:
    """Return the name of the folder for the features: a digest of what determines them."""
    model = job.config.model.model_dump_json(exclude={"init"})
    parts = (model, repr(job.image), job.data_fingerprint, str(job.store.name), precision)
    digest = hashlib.sha256("\n".join((*parts, device.type)).encode())
    digest.update(rows.tobytes())
    return digest.hexdigest()[:32]


def _about(seconds: float) -> str:
    if seconds <= _SECONDS_SHOWN:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / _MINUTE)} min"


def _fitted(
    job: TrainingJob, data: TrainingData, features: _Features, events: EventWriter
) -> FittedHead:
    weights_K = None
    if job.config.training.class_weights == "balanced":
        weights_K = data.class_weights_K().numpy()
    training, validation = data.training.rows, data.validation_rows
    if not len(training):
        raise RunError("There is no training image. Add images to the training split.")
    fitted = fit_head(
        features.of(training),
        data.labels[training],
        features.of(validation),
        data.labels[validation],
        len(job.classes),
        class_weights_K=weights_K,
    )
    for step, each in enumerate(fitted.tried, start=1):
        values = {
            "probe/regularization": each.regularization,
            "probe/training_loss": each.training_loss,
            "probe/validation_loss": each.validation_loss,
            "probe/validation_accuracy": each.validation_accuracy,
        }
        events.write("metrics", step=step, values=values)
    return fitted


def _set_head(head: nn.Linear, fitted: FittedHead) -> None:
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(fitted.weight_KD))
        head.bias.copy_(torch.from_numpy(fitted.bias_K))


def _record(
    data: TrainingData, features: _Features, fitted: FittedHead, seconds: float
) -> EpochRecord:
    """Return the metrics of the head as those of the only epoch."""
    loss, accuracy = _loss_and_accuracy(data, features, fitted, data.training.rows)
    validation = _loss_and_accuracy(data, features, fitted, data.validation_rows)
    return EpochRecord(
        epoch=1.0,
        step=1,
        train_loss=loss,
        train_accuracy=accuracy,
        validation_loss=validation[0],
        validation_accuracy=validation[1],
        validation_images=len(data.validation_rows),
        learning_rate=0.0,
        images_per_second=len(features.rows) / seconds,
    )


def _loss_and_accuracy(
    data: TrainingData, features: _Features, fitted: FittedHead, rows: Integers
) -> tuple[float, float]:
    logits_NK = torch.from_numpy(features.of(rows) @ fitted.weight_KD.T + fitted.bias_K)
    labels_N = torch.from_numpy(data.labels[rows])
    loss = nn.functional.cross_entropy(logits_NK, labels_N)
    return float(loss), float((logits_NK.argmax(1) == labels_N).float().mean())
