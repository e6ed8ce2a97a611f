"""The training process, in plain torch: `python -P -m patchline.pipeline.training FOLDER`."""

from __future__ import annotations

import importlib

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.faults.memory import memory_named
from patchline.pipeline.training.fit import fit
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import detect_machine
from patchline.pipeline.training.parts.ensemble_members import combine_members
from patchline.pipeline.training.parts.fine_tuning import between_both
from patchline.pipeline.training.parts.last_blocks import (
    check_shared_folder,
    refit_last_blocks,
    train_last_blocks,
)
from patchline.pipeline.training.parts.probe import refit_head
from patchline.pipeline.training.processes.process_launch import ProcessGroup, train_in_processes
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import worker_main


@memory_named()
def train(job: TrainingJob, events: EventWriter) -> FrozenModel:
    """Train in this process, or in several that this one starts; return the part's result."""
    if job.part.members:
        return combine_members(job, events)
    unusable = detect_machine().unusable_gpu
    if unusable and job.config.training.device == "auto":
        message = f"The GPU is not used: {unusable}. Install a build of torch for this GPU."
        events.write("warning", message=message)
    trainable = job.config.training.trainable
    if trainable == "last_blocks" and (job.part.share or not job.part.refit):
        return _train_last_blocks(job, events)
    if trainable in ("head", "last_blocks") and job.part.refit:
        return refit_head(job, events)
    several = job.config.training.processes > 1
    result = train_in_processes(job) if several else fit(job, events)
    if trainable == "head_then_all" and isinstance(result, TrainResult):
        return between_both(job, result)
    return result


def _train_last_blocks(job: TrainingJob, events: EventWriter) -> FrozenModel:
    work = refit_last_blocks if job.part.refit else train_last_blocks
    if job.config.training.processes == 1:
        return work(job, events)
    check_shared_folder(job)
    with ProcessGroup(job) as group:
        return work(job, events, group.run)


def _get_ready() -> str:
    """Import what most training runs need, and describe this machine."""
    importlib.import_module("albumentations")
    return detect_machine().model_dump_json()


if __name__ == "__main__":
    worker_main(TrainingJob, train, _get_ready)
