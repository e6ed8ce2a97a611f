"""Fit the head first, then train all weights from there, and choose how far to go.

With a random head, the first steps would spoil good features before the head is of any use
(arXiv 2202.10054, section 3.4).

Weights on the straight line between a network with a fitted head and the same network after
training classify well all along it (WiSE-FT, arXiv 2109.01903, section 4). So there is no verdict
for one of the two ends. Points are compared by the loss on images that neither end was fitted on:
it is smoother than the accuracy, and on 70 images tells differences that no test of the hits could.
It is compared at the best temperature of each point, because label smoothing and long training
change the confidence alone, which the calibration undoes later.

The accuracy keeps rising a little beyond the point with the smallest loss. So the weights are those
of the furthest point whose loss is not larger than the smallest one by more than a standard error
of the difference: many images decide by themselves, and few leave trained weights that show no harm
nearly as they are. Only nearly: between the ends, both networks are averaged, but a training run of
few steps may end in weights that are worse than the head, and few images do not show that. So with
few images, the end itself has to be better than the point before it by more than the error.

Shapes: S points of the line, N images, K classes or labels.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.evaluation.metrics.temperature import PRIOR_DEVIATION
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.probe import FeatureNetwork, build_frozen_network, probe_of
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.start import HEAD_FOLDER
from patchline.pipeline.training.train_result import FineTuningRecord, TrainResult, TriedShare
from patchline.pipeline.training.trained_model import save_model_of
from patchline.pipeline.training.training_data import Integers, open_data
from patchline.pipeline.training.validation import quality
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import EVENTS_FILE
from patchline.pipeline.workspace.files.sealed_files import read_tensors
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, torch.Tensor]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The points of the line: 0 is the network with the fitted head, 1 the trained one."""
WITHOUT_CHOICE = 0.5
"""The share if there is no image to choose it with, as recommended by the paper."""
_FEWEST = 2
_FEW = 200
"""Images that do not tell weights at the end that are some points worse from equal ones."""
_TEMPERATURES = np.exp(np.linspace(-1.5, 1.5, 61))


def between(fitted: Tensors, trained: Tensors, share: float) -> dict[str, torch.Tensor]:
    """Return the weights at a share of the way; integers, such as counters, are the trained ones.

    Args:
        fitted: the weights at share 0.
        trained: the weights at share 1, with the same names.
        share: how far to go from the first weights to the second, from 0 to 1.
    """
    return {
        name: torch.lerp(fitted[name].to(tensor.device, tensor.dtype), tensor, share)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in trained.items()
    }


@torch.no_grad()
def logits_along(
    model: nn.Module,
    fitted: Tensors,
    trained: Tensors,
    images: StoredImages,
    rows: Integers,
    image: ImageSpec,
) -> Array:
    """Return the logits (S, N, K) of some images at all points of the line.

    Args:
        model: the model on its device; it has the trained weights afterwards.
        fitted: the model's weights at share 0.
        trained: the model's weights at share 1.
        images: the stored images.
        rows: the rows of the images to predict.
        image: how the model sees one.
    """
    device, logits = next(model.parameters()).device, []
    for share in SHARES:
        model.load_state_dict(between(fitted, trained, share))
        logits.append(predict_logits(model, images, rows, image, device=device).numpy())
    return np.stack(logits)


def choose_share(logits_SNK: Array, truth: Array, *, held_out: int = 0) -> FineTuningRecord:
    """Choose the furthest point of the line with no larger loss than the best, up to its error.

    With few images, it is the point before the trained end, unless the end is clearly better.

    Args:
        logits_SNK: the logits at all points, of images that were not used for training: validation
            images, and training images predicted by fits without their fold.
        truth: class indices (N) of these images, or sets of labels as 0 and 1 (N, K).
        held_out: how many of the images are training images.
    """
    images = len(truth)
    if images < _FEWEST:
        return FineTuningRecord(share=WITHOUT_CHOICE, tried=(), images=images, held_out=held_out)
    losses_SN = np.stack([_losses(each_NK, truth) for each_NK in logits_SNK])
    mean_S = losses_SN.mean(1)
    smallest = int(mean_S.argmin())
    furthest = int(np.flatnonzero(_not_worse(losses_SN, smallest)).max())
    end = len(SHARES) - 1
    if images < _FEW and furthest == end and _not_worse(losses_SN, end)[end - 1]:
        furthest = end - 1
    tried = tuple(
        TriedShare(share=share, loss=float(loss), **_accuracy_or_map(logits_NK, truth))
        for share, logits_NK, loss in zip(SHARES, logits_SNK, mean_S, strict=True)
    )
    return FineTuningRecord(share=SHARES[furthest], tried=tried, images=images, held_out=held_out)


def _not_worse(losses_SN: Array, than: int) -> Array:
    """Return which points (S) have no larger loss than one of them, up to a standard error."""
    differences_SN = losses_SN - losses_SN[than]
    errors_S = differences_SN.std(1, ddof=1) / losses_SN.shape[1] ** 0.5
    smaller: Array = differences_SN.mean(1) <= errors_S
    return smaller


def _accuracy_or_map(logits_NK: Array, truth: Array) -> dict[str, float | None]:
    if _are_sets(truth):
        return {"accuracy": None, "map": mean_average_precision(logits_NK, truth).value}
    return {"accuracy": float((logits_NK.argmax(1) == truth).mean())}


def _losses(logits_NK: Array, truth: Array) -> Array:
    """Return the cross-entropy of each image (N), at the best temperature of all.

    Of sets of labels, it is the mean over the labels.
    """
    logits_NK, questions = np.asarray(logits_NK, np.float64), 1
    logits = torch.from_numpy(logits_NK)
    if _are_sets(truth):
        targets_NK, questions = torch.from_numpy(truth).double(), truth.shape[1]

        def losses_at(temperature: float) -> torch.Tensor:
            return nn.functional.binary_cross_entropy_with_logits(
                logits / temperature, targets_NK, reduction="none"
            ).mean(1)
    else:
        labels_N = torch.from_numpy(truth)

        def losses_at(temperature: float) -> torch.Tensor:
            return nn.functional.cross_entropy(logits / temperature, labels_N, reduction="none")

    losses_TN = np.stack([losses_at(temperature).numpy() for temperature in _TEMPERATURES])
    # few images do not determine a temperature; the prior then decides
    unlikely_T = (np.log(_TEMPERATURES) / PRIOR_DEVIATION) ** 2 / 2
    best: Array = losses_TN[int((losses_TN.sum(1) * questions + unlikely_T).argmin())]
    return best


def _are_sets(truth: Array) -> bool:
    return truth.ndim == 2  # noqa: PLR2004 - images and labels


_RESULT_FILE = "head.json"
_MIXED = "mixed"
_FEWEST_UPDATES, _PASSES_OF_A_STEP = 10, 3.5
"""With fewer, weights hardly leave the head; and passes without gradients that a step takes."""
_MOST_IMAGES = 2000
"""Validation images that the points of the line are compared on."""


def fit_head_first(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> TrainingJob:
    """Fit the head in a folder of its own, unless an interrupted attempt has done so.

    Args:
        job: the job of the training of all weights, which reads the fitted head from the folder.
        events: gets the metrics.
        ranks: the ranks that compute the features together, of which the first fits the head; by
            default, this process is alone.

    Returns:
        The job with the time that is left.
    """
    ranks, began = ranks or Ranks(), time.monotonic()
    own = job.model_copy(update={"folder": job.folder / HEAD_FOLDER})
    [is_fitted] = ranks.numbers_of_first((own.folder / _RESULT_FILE).exists())
    if not is_fitted:
        frozen = build_frozen_network(own, events, ranks)
        if ranks.is_first:
            head_first(own, frozen, events, began)
    [taken] = ranks.numbers_of_first(time.monotonic() - began)
    return job.limited_to(job.limit_seconds - taken)


def read_fitted_head(job: TrainingJob) -> TrainResult:
    """Return the result of the head that was fitted first."""
    return TrainResult.from_file(job.folder / HEAD_FOLDER / _RESULT_FILE)


def is_too_late(job: TrainingJob, fitted: TrainResult) -> bool:
    """Return whether a time limit leaves too few updates to improve on the fitted head.

    Args:
        job: the job with the time that is left.
        fitted: the head, whose features tell how long an image takes.
    """
    update = _PASSES_OF_A_STEP * job.config.training.batch_size / fitted.images_per_second
    return job.limit_seconds < _FEWEST_UPDATES * update


def why_enough(job: TrainingJob, fitted: TrainResult) -> str:
    """Return why no more than the head is trained; empty if more is, or if its error is not known.

    Of few images, the error is that of the rule of succession: none wrong of 10 counts as 1 of 12.

    Args:
        job: the job, with the error that the plan accepts.
        fitted: the head.
    """
    accepted, record = job.config.record.accepted_error, fitted.history[-1]
    is_map = record.validation_accuracy is None
    right = record.validation_map if is_map else record.validation_accuracy
    images = record.validation_images
    if not accepted or right is None or ((1 - right) * images + 1) / (images + 2) > accepted:
        return ""
    name = "mAP" if is_map else "accuracy"
    return (
        f"the head has a validation {name} of {right:.1%} (n = {images:,}), so more training would "
        f"not be worth its time; --training.trainable {job.config.training.trainable} does it"
    )


NO_TIME = "no time is left for more than the head"


def head_first(
    job: TrainingJob, frozen: FeatureNetwork, events: EventWriter, began: float
) -> TrainResult:
    """Fit the head of a frozen network, unless an interrupted attempt has done so.

    Args:
        job: the job, with a folder of its own for the head.
        frozen: the network.
        events: gets the metrics.
        began: the time when the features were begun, on the monotonic clock.
    """
    file = job.folder / _RESULT_FILE
    if file.exists():
        return TrainResult.from_file(file)
    fitted = probe_of(job, frozen, events, began, is_first=True)
    fitted.to_file(file)
    return fitted


def between_both(job: TrainingJob, trained: TrainResult) -> TrainResult:
    """Return the result with the best weights between the fitted head and the trained ones.

    Args:
        job: the job of the training.
        trained: the result for all weights.
    """
    fitted = read_fitted_head(job)
    data, device = open_data(job), torch.device(trained.device)
    rows = data.validation_rows[:_MOST_IMAGES]
    model = load_model(trained.best)[0].to(device)
    before, after = (read_tensors(each.best / WEIGHTS_FILE)[0] for each in (fitted, trained))
    logits_SNK = logits_along(model, before, after, data.images, rows, job.image)
    c_used = fitted.probe.regularization if fitted.probe else None
    truth = data.truth(rows)
    record = choose_share(logits_SNK, truth).model_copy(update={"regularization": c_used})
    events = EventWriter(job.folder / EVENTS_FILE)
    events.write("note", message=record.sentence())
    place = SHARES.index(record.share)
    kept = quality(torch.from_numpy(logits_SNK[place]), truth)
    changes = {
        "fine_tuning": record,
        "feature_precision": fitted.precision,
        **kept.of_result(),
    }
    if record.kept_head:
        changes |= {"best": fitted.best, "probe": fitted.probe}
    elif record.share < 1:
        folder = job.folder / _MIXED
        model.load_state_dict(between(before, after, record.share))
        save_model_of(job, model, folder)
        changes["best"] = folder
    return trained.model_copy(update=changes)
