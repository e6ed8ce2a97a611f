"""Fit the head first, then train all weights from there, and choose how far to go.

With a random head, the first steps would spoil good features before the head is of any use
(arXiv 2202.10054, section 3.4).
"""

from __future__ import annotations

import time

import torch
from torch import nn

from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts import interpolation
from patchline.pipeline.training.parts.probe import FeatureNetwork, frozen_network, probe_of
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.start.initial_model import HEAD_FOLDER
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.training.trained_model import save_model_of
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.training.validation import quality
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import EVENTS_FILE
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import read_tensors

_RESULT_FILE = "head.json"
_MIXED = "mixed"
_MOST_IMAGES = 2000
"""Validation images that the points of the line are compared on."""


def fit_head_first(job: TrainingJob, events: EventWriter, ranks: Ranks | None = None) -> None:
    """Fit the head in a folder of its own, unless an interrupted attempt has done so.

    Args:
        job: of the training of all weights, which reads the fitted head from the folder.
        events: gets the metrics.
        ranks: compute the features together, and the first one fits the head; by default, this
            process is alone.
    """
    ranks = ranks or Ranks()
    own = job.model_copy(update={"folder": job.folder / HEAD_FOLDER})
    [is_fitted] = ranks.numbers_of_first((own.folder / _RESULT_FILE).exists())
    if is_fitted:
        return
    began = time.monotonic()
    frozen = frozen_network(own, events, ranks)
    if ranks.is_first:
        head_first(own, frozen, events, began)


def head_first(
    job: TrainingJob, frozen: FeatureNetwork, events: EventWriter, began: float
) -> TrainResult:
    """Fit the head of a frozen network, unless an interrupted attempt has done so.

    Args:
        job: with a folder of its own for the head.
        frozen: the network.
        events: gets the metrics.
        began: when the features were begun, on the monotonic clock.
    """
    file = job.folder / _RESULT_FILE
    if file.exists():
        return TrainResult.model_validate_json(file.read_text(encoding="utf-8"))
    fitted = probe_of(job, frozen, events, began, is_first=True)
    write_text(file, fitted.model_dump_json())
    return fitted


def between_both(job: TrainingJob, trained: TrainResult) -> TrainResult:
    """Return the result with the best weights between the fitted head and the trained ones.

    Args:
        job: of the training.
        trained: the result for all weights.
    """
    text = (job.folder / HEAD_FOLDER / _RESULT_FILE).read_text(encoding="utf-8")
    fitted = TrainResult.model_validate_json(text)
    data, device = open_data(job), torch.device(trained.device)
    rows = data.validation_rows[:_MOST_IMAGES]
    model = load_model(trained.best)[0].to(device)
    before, after = (read_tensors(each.best / WEIGHTS_FILE)[0] for each in (fitted, trained))

    def predict(at_share: nn.Module) -> interpolation.Array:
        logits_NK: interpolation.Array = predict_logits(
            at_share, data.images, rows, job.image, device=device
        ).numpy()
        return logits_NK

    logits_SNK = interpolation.logits_along(model, before, after, predict)
    c_used = fitted.probe.regularization if fitted.probe else None
    truth = data.truth(rows)
    record = interpolation.choose_share(logits_SNK, truth).model_copy(
        update={"regularization": c_used}
    )
    events = EventWriter(job.folder / EVENTS_FILE)
    events.write("note", message=record.sentence())
    place = interpolation.SHARES.index(record.share)
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
        model.load_state_dict(interpolation.between(before, after, record.share))
        save_model_of(job, model, folder)
        changes["best"] = folder
    return trained.model_copy(update=changes)
