"""Fit the head first, then train all weights from there, and keep that only if it is better.

With a random head, the first steps would spoil good features before the head is of any use
(arXiv 2202.10054, section 3.4).
"""

from __future__ import annotations

import torch

from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.metrics.paired_test import is_better, paired_difference
from patchline.pipeline.models.stored_logits import logits_of
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.probe import probe
from patchline.pipeline.training.start.initial_model import HEAD_FOLDER
from patchline.pipeline.training.train_result import FineTuningRecord, TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import EVENTS_FILE

_RESULT_FILE = "head.json"


def fit_head_first(job: TrainingJob, events: EventWriter) -> None:
    """Fit the head in a folder of its own, unless an interrupted attempt has done so."""
    folder = job.folder / HEAD_FOLDER
    if not (folder / _RESULT_FILE).exists():
        fitted = probe(job.model_copy(update={"folder": folder}), events, is_first=True)
        write_text(folder / _RESULT_FILE, fitted.model_dump_json())


def better_of_both(job: TrainingJob, trained: TrainResult) -> TrainResult:
    """Compare the two models on all validation images, and return the result of the one to keep.

    All weights are kept if they classify significantly more images correctly; otherwise the head
    alone is, whose features are those of the initial weights.

    Args:
        job: of the training.
        trained: the result for all weights.
    """
    text = (job.folder / HEAD_FOLDER / _RESULT_FILE).read_text(encoding="utf-8")
    fitted = TrainResult.model_validate_json(text)
    data = open_data(job)
    rows, device = data.validation_rows, torch.device(trained.device)
    right_before, right_after = (
        logits_of(folder, data.images, rows, device).argmax(1) == data.labels[rows]
        for folder in (fitted.best, trained.best)
    )
    pair = paired_difference(right_before, right_after)
    record = FineTuningRecord(
        head_accuracy=float(right_before.mean()),
        all_accuracy=float(right_after.mean()),
        p_value=pair.p_value,
        kept="all" if is_better(pair) else "head",
    )
    events = EventWriter(job.folder / EVENTS_FILE)
    events.write("note", message=record.sentence())
    if record.kept == "all":
        return trained.model_copy(update={"fine_tuning": record})
    changes = {
        "best": fitted.best,
        "best_validation_accuracy": fitted.best_validation_accuracy,
        "probe": fitted.probe,
        "fine_tuning": record,
    }
    return trained.model_copy(update=changes)
