"""What the process that leads a training does: the augmentation preview, then the training."""

from __future__ import annotations

import cv2

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.augmentation_preview import preview_grid
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts.refit import Refit
from patchline.pipeline.training.processes.process_group import ProcessGroup
from patchline.pipeline.workers.event_log import EventWriter


def lead(job: TrainingJob, events: EventWriter, group: ProcessGroup) -> FrozenModel:
    """Draw the augmentation preview, then train; return the result of the job's part."""
    training = (Refit if job.part.refit else Training)(job, events, group)
    rows = training.data.preview_rows()
    grid = preview_grid(
        training.data.training.augment(), training.data.images, rows, mixing=job.config.training
    )
    picture = job.folder / "augmentation_preview.png"
    cv2.imwrite(str(picture), grid[:, :, ::-1])
    events.write("artifact", path=str(picture), name="augmentation_preview.png")
    if message := group.warning(training.state.model):
        events.write("warning", message=message)
    return training.refit() if isinstance(training, Refit) else training.run()
