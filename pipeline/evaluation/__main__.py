"""The prediction worker: `python -P -m pipeline.evaluation FOLDER`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pipeline.data import manifest as manifests
from pipeline.data.prepared_store import Pixels, open_images
from pipeline.evaluation.predictions import (
    FROM_MANIFEST,
    PredictionJob,
    PredictionResult,
    save,
)
from pipeline.models.inference import kept_logits, predict_logits
from pipeline.models.model_files import load_model
from pipeline.workers.event_log import EventWriter
from pipeline.workers.worker_process import worker_main

Array = np.ndarray[Any, Any]


def predict(job: PredictionJob, events: EventWriter) -> PredictionResult:
    """Predict the chosen splits in float32 and save their logits."""
    device, images = torch.device(job.device), open_images(job.store)
    table = manifests.usable(manifests.load(job.manifest_file))
    parts = [(job.model_folder, np.flatnonzero(table["split"].isin(job.splits)))]
    parts += [(held_out.model_folder, held_out.rows(table)) for held_out in job.held_out]
    total, began = sum(len(rows) for _, rows in parts), time.monotonic()
    found: list[pd.DataFrame] = []
    for folder, rows in parts:
        before = sum(len(part) for part in found)
        report = partial(_report, events, before, total)
        logits_NK = _logits(folder, images, rows, device, report)
        found.append(table.loc[rows, FROM_MANIFEST].assign(row=rows, logits=list(logits_NK)))
    seconds = time.monotonic() - began
    chosen = pd.concat(found).sort_values("row", kind="stable")
    save(chosen, job.file)
    return PredictionResult(file=job.file, images=total, seconds=seconds)


def _logits(
    folder: Path,
    images: Pixels,
    rows: Array,
    device: torch.device,
    on_progress: Callable[[int, int], None],
) -> Array:
    """Return the logits of a model for some rows: those that are kept with it, or computed now."""
    known = kept_logits(folder)
    if known is not None:
        return np.asarray(known[rows])
    model, description = load_model(folder)
    logits_NK = predict_logits(
        model.to(device), images, rows, description.image, device=device, on_progress=on_progress
    )
    return logits_NK.numpy()


def _report(events: EventWriter, before: int, total: int, done: int, _of_part: int) -> None:
    events.progress(before + done, total, "image")


if __name__ == "__main__":
    worker_main(PredictionJob, predict)
