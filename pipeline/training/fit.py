"""One job, as every rank of a training run does it: the head, the preview and the training."""

from __future__ import annotations

import cv2

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.augmentation_preview import preview_grid
from patchline.pipeline.training.faults.out_of_memory import explain_out_of_memory
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts.fine_tuning import fit_head_first
from patchline.pipeline.training.parts.last_blocks import tokens_together
from patchline.pipeline.training.parts.probe import probe, probe_together
from patchline.pipeline.training.parts.refit import Refit
from patchline.pipeline.training.parts.token_fit import fit_together
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.workers.event_log import EventWriter


@explain_out_of_memory()
def fit(job: TrainingJob, events: EventWriter, ranks: Ranks | None = None) -> FrozenModel:
    """Train to the end, and return the result of the job's part.

    Args:
        job: the same on all ranks.
        events: those of other ranks than the first are not read.
        ranks: by default, this process trains alone.
    """
    trainable = job.config.training.trainable
    if trainable == "last_blocks":
        together = tokens_together if job.tokens is None else fit_together
        return together(job, events, ranks or Ranks())
    if trainable == "head":
        return probe_together(job, events, ranks) if ranks else probe(job, events)
    if trainable == "head_then_all":
        fit_head_first(job, events, ranks)
    training = (Refit if job.part.refit else Training)(job, events, ranks)
    if training.ranks.is_first:
        _draw_preview(training)
    return training.refit() if isinstance(training, Refit) else training.run()


def _draw_preview(training: Training) -> None:
    data, job = training.data, training.job
    augmentation, rows = data.training.augment(), data.preview_rows()
    grid = preview_grid(augmentation, data.images, rows, mixing=job.config.training)
    picture = job.folder / "augmentation_preview.png"
    cv2.imwrite(str(picture), grid[:, :, ::-1])
    training.events.write("artifact", path=str(picture), name=picture.name)
