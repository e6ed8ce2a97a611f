"""Make one model of the models of all folds.

Each member is calibrated on the images of its own fold, which it was not trained on.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.metrics.temperature import fit_temperature
from patchline.pipeline.models.ensemble import Ensemble
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.job_provenance import provenance_of_job
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.train_result import EnsembleResult
from patchline.pipeline.workers.event_log import EventWriter

_WEIGHTS = "weights"


def combine_members(job: TrainingJob, events: EventWriter) -> EnsembleResult:
    """Calibrate the models of the folds, and save them as one model."""
    began = time.monotonic()
    device = torch.device(choose_device(job.config.training, detect_machine()))
    make_repeatable(job.config.training.threads, device)
    images = open_images(job.store)
    rows = manifests.usable(manifests.load(job.manifest_file))
    index = {label: number for number, label in enumerate(job.classes)}
    labels = rows["label"].map(index).to_numpy().astype(np.int64)
    models, fits = [], []
    for number, folder in enumerate(job.part.members, start=1):
        model, description = load_model(folder)
        part = job.part.model_copy(update={"fold": number, "folds": len(job.part.members)})
        _, held_out = part.rows(rows, job.config.data.split_seed)
        logits_NK = predict_logits(
            model.to(device), images, held_out, description.image, device=device
        )
        models.append(model.cpu())
        fits.append(fit_temperature(logits_NK.numpy(), labels[held_out]))
        events.progress(number, len(job.part.members), "model")
    folder = job.folder / _WEIGHTS
    described = description.model_copy(update={"members": len(models), "run_id": job.run_id})
    temperatures = [fit.temperature for fit in fits]
    save_model(folder, Ensemble(models, temperatures), described, provenance_of_job(job))
    seconds = time.monotonic() - began
    return EnsembleResult(weights=folder, calibrations=tuple(fits), seconds=seconds)
