"""Train only the head: a linear probe on the frozen features of the initial weights.

Features are computed once for each image, test images included, and kept in the workspace. So an
interrupted run continues with the next images, and a later run with the same weights and images
begins with the fit. The evaluation needs no further pass of the model if the features are float32;
with bfloat16, it computes the logits again as the package does.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.reading.decoder_version import decoder_version
from patchline.pipeline.errors import RunError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.probing.chosen_features import choose_rows
from patchline.pipeline.models.probing.features import (
    FeatureStore,
    suitable_batch_size,
)
from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION
from patchline.pipeline.models.probing.linear_fit import FittedHead, fit_head
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.models.stored_logits import save_logits
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.training.checkpoint import FINAL
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.speed.precision import Precision, choose_for_training
from patchline.pipeline.training.start import initial_model
from patchline.pipeline.training.train_result import (
    EpochRecord,
    ProbeRecord,
    RefitResult,
    TrainResult,
    without_none,
)
from patchline.pipeline.training.trained_model import description_of, provenance_of_job
from patchline.pipeline.training.training_data import (
    Integers,
    TrainingData,
    open_data,
    units_of_rows,
)
from patchline.pipeline.training.validation import quality
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import FEATURES, FEATURES_FILE
from patchline.pipeline.workspace.run_memory import stage_keys

_METRICS_OF_FIRST = ("validation/accuracy", "validation/mAP", "validation/loss", "train/accuracy")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FeatureNetwork:
    """The model of a job with its initial weights, and the features of all images."""

    data: TrainingData
    model: nn.Module
    head: nn.Linear
    features_ND: Array
    folder: Path
    """Folder of the features, for this network and these images."""
    seconds: float
    """Seconds that it took to compute the features, or to find them."""
    precision: Precision
    device: torch.device
    threads: int

    def logits_with(self, fitted: FittedHead) -> Array:
        """Return a head's logits (N, K) of all images."""
        logits_NK: Array = self.features_ND @ fitted.weight_KD.T + fitted.bias_K
        return logits_NK


def probe(job: TrainingJob, events: EventWriter) -> TrainResult:
    """Fit the head of a job's model, and save the model.

    Args:
        job: the model and the data.
        events: gets the metrics.

    Raises:
        ConfigError: if the model has no linear head, or the initial weights do not fit it.
    """
    began = time.monotonic()
    return probe_of(job, build_frozen_network(job, events), events, began)


def probe_together(job: TrainingJob, events: EventWriter, ranks: Ranks) -> FrozenModel:
    """Compute the features with all ranks, and let the first one fit the head; see `probe`.

    Returns:
        The result; on other ranks only the precision.
    """
    began = time.monotonic()
    frozen = build_frozen_network(job, events, ranks)
    return probe_of(job, frozen, events, began) if ranks.is_first else frozen.precision


def probe_of(
    job: TrainingJob,
    frozen: FeatureNetwork,
    events: EventWriter,
    began: float,
    *,
    is_first: bool = False,
) -> TrainResult:
    """Fit the head of a network whose features are computed, and save the model; see `probe`.

    Args:
        job: the model and the data.
        frozen: the network; it has the fitted head afterwards.
        events: gets the metrics.
        began: the time when the features were begun, on the monotonic clock.
        is_first: whether more weights are trained after the head; its metrics are then called
            `head/…`.
    """
    fitted = fit_classifier_head(job, frozen, events)
    logits_NK = frozen.logits_with(fitted)
    record = _record(frozen, logits_NK)
    values = record.metric_values()
    if is_first:
        values = {f"head/{name}": values[name] for name in _METRICS_OF_FIRST if name in values}
    values["probe/regularization"] = fitted.regularization
    events.write("metrics", step=len(fitted.tried) + 1, values=values)
    return TrainResult(
        best=_save(job, frozen, fitted, logits_NK),
        best_step=record.step,
        best_epoch=record.epoch,
        best_validation_accuracy=record.validation_accuracy,
        best_validation_loss=record.validation_loss,
        best_validation_map=record.validation_map,
        steps=record.step,
        epochs=record.epoch,
        seconds=time.monotonic() - began,
        images_per_second=record.images_per_second,
        step_plan=((0, 0.0, record.step),),
        precision=frozen.precision.name,
        device=frozen.device.type,
        threads=frozen.threads,
        parameters=sum(parameter.numel() for parameter in frozen.model.parameters()),
        stopped_because=f"the head was fitted; regularization C {fitted.regularization:g}",
        history=(record,),
        probe=ProbeRecord(
            regularization=fitted.regularization,
            features=frozen.head.in_features,
            images=len(frozen.features_ND),
            features_seconds=frozen.seconds,
        ),
    )


def refit_head(job: TrainingJob, events: EventWriter) -> RefitResult:
    """Fit the head on the training and validation images together, with the C of the job's part.

    The features are those that the earlier parts of the run have computed.
    """
    began = time.monotonic()
    frozen = build_frozen_network(job, events)
    fitted, rows = fit_classifier_head(job, frozen, events), frozen.data.training.rows
    logits_NK = frozen.logits_with(fitted)
    fit = quality(torch.from_numpy(logits_NK[rows]), frozen.data.truth(rows))
    values = {"refit/loss": fit.loss, "refit/accuracy": fit.accuracy, "refit/mAP": fit.map}
    events.write("metrics", step=1, values=without_none(values))
    seconds = max(time.monotonic() - began, 1e-9)
    return RefitResult(
        weights=_save(job, frozen, fitted, logits_NK),
        images=len(rows),
        steps=1,
        epochs=1.0,
        seconds=seconds,
        images_per_second=len(rows) / seconds,
    )


def build_frozen_network(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> FeatureNetwork:
    """Build the model of a job, and compute the features that are not stored yet.

    Args:
        job: the model and the data.
        events: gets notes and progress.
        ranks: the ranks that compute the features together; only the first one gets them. By
            default, this process computes them alone.
    """
    ranks = ranks or Ranks()
    device = ranks.own_device(choose_device(job.config.training, detect_machine()))
    own_threads = make_repeatable(ranks.own_threads(job.config.training.threads), device)
    data = open_data(job)
    with ranks.first_before_others(job.folder):
        model = initial_model(job, data, events).to(device).eval()
    precision = choose_for_training(job, model, ranks, events, is_frozen=True)
    store = _feature_store(job, data, model, precision.name, ranks)
    features_ND, seconds = _compute_features(job, store, events, ranks)
    return FeatureNetwork(
        data,
        model,
        store.head,
        features_ND,
        store.folder,
        seconds,
        precision,
        device,
        ranks.threads_of_machine(own_threads),
    )


def _save(job: TrainingJob, frozen: FeatureNetwork, fitted: FittedHead, logits_NK: Array) -> Path:
    """Save the model with its fitted head, and the logits if they are exact; return the folder."""
    with torch.no_grad():
        frozen.head.weight.copy_(torch.from_numpy(fitted.weight_KD))
        frozen.head.bias.copy_(torch.from_numpy(fitted.bias_K))
    folder = job.folder / FINAL
    described = description_of(job).model_copy(update={"head_only": True})
    save_model(folder, frozen.model, described, provenance_of_job(job))
    precision, device = frozen.precision.name, frozen.device.type
    table = manifests.usable(manifests.load(job.manifest_file))
    rows = choose_rows(table, job.config.seed).tolist()
    features = {row: frozen.features_ND[row] for row in rows}
    save_logits(folder, logits_NK, precision=precision, device=device, features=features)
    return folder


def _feature_store(
    job: TrainingJob, data: TrainingData, model: nn.Module, precision: str, ranks: Ranks
) -> FeatureStore:
    """Return where the features of all images are kept."""
    head = linear_head(model, len(job.classes), job.image)
    device = next(model.parameters()).device
    folder, network = _identities(job, model, head)
    return FeatureStore(
        model,
        data.images,
        np.arange(len(data.images), dtype=np.int64),
        job.image,
        (job.workspace or job.folder) / FEATURES / folder,
        device,
        precision,
        suitable_batch_size(job.image, device),
        head,
        contents=tuple(manifests.usable(manifests.load(job.manifest_file))["sha256"]),
        network=network,
        group=ranks if ranks.size > 1 and ranks.shares_folder else None,
    )


def _compute_features(
    job: TrainingJob, store: FeatureStore, events: EventWriter, ranks: Ranks
) -> tuple[Array, float]:
    """Return the features of all images, and the seconds it took to compute what was missing."""
    if ranks.is_first:
        write_text(job.folder / FEATURES_FILE, json.dumps({"folders": [store.folder.name]}) + "\n")
    elif not ranks.shares_folder:
        return np.empty((0, 0), np.float32), 0.0  # the first computes all of them
    began, left = time.monotonic(), store.remaining() if ranks.is_first else 0
    if left:
        images = counted(left, "image")
        events.write("note", message=f"computing the features of {images}")
    features_ND = store.features(lambda done, of: events.progress(done, of, "features"))
    return features_ND, max(time.monotonic() - began, 1e-9)


def _identities(job: TrainingJob, model: nn.Module, head: nn.Linear) -> tuple[str, str]:
    """Return the name of the folder for the features, and a digest of what computes them.

    The first is a digest of the model and all images, the second of the model, and of how an image
    is decoded.
    """
    settings = job.config.model.architecture().model_dump_json()
    plugins = stage_keys.plugins(job.config, "model", "patch_embedding")
    parts = (
        settings,
        repr(job.image),
        repr(plugins),
        stage_keys.code("patchline.pipeline.models.layers"),
    )
    folder, network = (
        hashlib.sha256("\n".join((*parts, each)).encode())
        for each in (job.store.name, repr(decoder_version()))
    )
    of_head = {tensor.data_ptr() for tensor in head.state_dict().values()}
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() not in of_head:
            content = tensor.detach().cpu().contiguous().numpy().tobytes()
            for digest in (folder, network):
                digest.update(name.encode())
                digest.update(content)
    return folder.hexdigest()[:32], network.hexdigest()[:32]


def head_of_rows(
    job: TrainingJob,
    frozen: FeatureNetwork,
    training: Integers,
    validation: Integers,
    regularization: float | None,
) -> FittedHead:
    """Fit a head on some training images, with a C that is given or decided by others."""
    weights_K, units_N, data, features_ND = None, None, frozen.data, frozen.features_ND
    if job.config.training.class_balance != "none":
        weights_K = data.class_weights_of(training).numpy()
    if regularization is None and len(validation) < FEWEST_VALIDATION:
        units_N = units_of_rows(job, training)
    return fit_head(
        np.asarray(features_ND[training]),
        data.truth(training),
        np.asarray(features_ND[validation]),
        data.truth(validation),
        len(job.classes),
        units_N=units_N,
        class_weights_K=weights_K,
        regularization=regularization,
    )


def fit_classifier_head(
    job: TrainingJob, frozen: FeatureNetwork, events: EventWriter
) -> FittedHead:
    """Fit the head, and report the tried values of C."""
    training, validation = frozen.data.training.rows, frozen.data.validation_rows
    if not len(training):
        raise RunError("There is no training image. Add images to the training split.")
    if job.config.training.class_balance == "weights" and (note := frozen.data.note_on_weights()):
        events.write("note", message=note)
    fitted = head_of_rows(job, frozen, training, validation, job.part.regularization)
    for step, each in enumerate(fitted.tried, start=1):
        values = {
            "probe/regularization": each.regularization,
            "probe/training_loss": each.training_loss,
            "probe/validation_loss": each.validation_loss,
            "probe/validation_accuracy": each.validation_accuracy,
            "probe/validation_mAP": each.validation_map,
        }
        events.write("metrics", step=step, values=without_none(values))
    return fitted


def _record(frozen: FeatureNetwork, logits_NK: Array) -> EpochRecord:
    """Return the metrics of the head as those of the only epoch."""
    data = frozen.data
    rows = data.training.rows, data.validation_rows
    trained, validated = (quality(torch.from_numpy(logits_NK[r]), data.truth(r)) for r in rows)
    return EpochRecord(
        epoch=1.0,
        step=1,
        train_loss=trained.loss,
        train_accuracy=trained.accuracy,
        **validated.of_record(),
        map_positives=validated.map_positives,
        validation_images=len(data.validation_rows),
        learning_rate=0.0,
        images_per_second=len(frozen.features_ND) / frozen.seconds,
    )
