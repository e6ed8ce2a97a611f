"""The prediction worker: `python -P -m pipeline.evaluation FOLDER`."""

from __future__ import annotations

import time

import numpy as np
import torch

from pipeline.data import manifest as manifests
from pipeline.data.prepared_store import open_images
from pipeline.evaluation.predictions import (
    FROM_MANIFEST,
    PredictionJob,
    PredictionResult,
    save,
)
from pipeline.models.inference import predict_logits
from pipeline.models.model_files import load_model
from pipeline.workers.event_log import EventWriter
from pipeline.workers.worker_process import worker_main


def predict(job: PredictionJob, events: EventWriter) -> PredictionResult:
    """Predict the chosen splits in float32 and save their logits."""
    model, description = load_model(job.model_folder)
    device = torch.device(job.device)
    table = manifests.usable(manifests.load(job.manifest_file))
    rows = np.flatnonzero(table["split"].isin(job.splits))
    began = time.monotonic()
    logits = predict_logits(
        model.to(device),
        open_images(job.store),
        rows,
        description.image,
        device=device,
        on_progress=lambda done, total: events.progress(done, total, "image"),
    )
    seconds = time.monotonic() - began
    chosen = table.loc[rows, FROM_MANIFEST].assign(row=rows, logits=list(logits.numpy()))
    save(chosen, job.file)
    return PredictionResult(file=job.file, images=len(rows), seconds=seconds)


if __name__ == "__main__":
    worker_main(PredictionJob, predict)
