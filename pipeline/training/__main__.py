"""The training process: `python -P -m pipeline.training FOLDER`. Plain torch, no orchestration."""

from __future__ import annotations

import importlib

import cv2

from pipeline.section import Section
from pipeline.training.augmentation_preview import preview_grid
from pipeline.training.ensemble_members import combine_members
from pipeline.training.job import TrainingJob
from pipeline.training.loop import Training
from pipeline.training.machine import look
from pipeline.training.refit import Refit
from pipeline.workers.event_log import EventWriter
from pipeline.workers.worker_process import worker_main


def train(job: TrainingJob, events: EventWriter) -> Section:
    """Draw the augmentation preview, then train; return the result of the job's part."""
    if job.part.members:
        return combine_members(job, events)
    training = Refit(job, events) if job.part.refit else Training(job, events)
    rows = training.data.preview_rows()
    grid = preview_grid(
        training.data.training.augment(), training.data.images, rows, mixing=job.config.training
    )
    picture = job.folder / "augmentation_preview.png"
    cv2.imwrite(str(picture), grid[:, :, ::-1])
    events.write("artifact", path=str(picture), name="augmentation_preview.png")
    return training.refit() if isinstance(training, Refit) else training.run()


def _get_ready() -> str:
    """Import what most training runs need, and describe this machine."""
    importlib.import_module("albumentations")
    return look().model_dump_json()


if __name__ == "__main__":
    worker_main(TrainingJob, train, _get_ready)
