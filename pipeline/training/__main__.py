"""The training process, in plain torch: `python -P -m patchline.pipeline.training FOLDER`.

What computes is imported late, because a process that starts and watches others does not need it.
"""

from __future__ import annotations

import importlib

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.job import TRAINING, TrainingJob
from patchline.pipeline.training.machine import detect_machine
from patchline.pipeline.training.processes.process_launch import ProcessGroup
from patchline.pipeline.training.train_result import RefitResult, TrainResult
from patchline.pipeline.workers.event_log import EventWriter


def train(job: TrainingJob, events: EventWriter) -> FrozenModel:
    """Train in this process, or in several that this one starts; return the part's result."""
    unusable = detect_machine().unusable_gpu
    if unusable and job.config.training.device == "auto" and not job.part.members:
        message = f"The GPU is not used: {unusable}. Install a build of torch for this GPU."
        events.write("warning", message=message)
    if job.config.training.processes > 1 and _is_one_fit(job):
        kind = RefitResult if job.part.refit else TrainResult
        with ProcessGroup(job) as group:  # which computes; this process needs little of torch
            result = group.run(job, kind)
    else:
        result = _train_here(job, events)
    has_both = job.config.training.trainable == "head_then_all"
    if has_both and isinstance(result, TrainResult) and not result.probe:
        return _between_both(job, result)
    return result


def _is_one_fit(job: TrainingJob) -> bool:
    """Return whether a part is a single fit, which several processes can share from its start."""
    trainable, part = job.config.training.trainable, job.part
    refits_head = part.refit and trainable in ("head", "last_blocks")
    return not (part.members or refits_head or trainable == "last_blocks")


def _train_here(job: TrainingJob, events: EventWriter) -> FrozenModel:
    from patchline.pipeline.training.out_of_memory import explain_out_of_memory
    from patchline.pipeline.training.parts.after_folds import combine_members, fit_all_weights
    from patchline.pipeline.training.parts.probe import probe, refit_head

    part, trainable = job.part, job.config.training.trainable
    with explain_out_of_memory():
        if part.members:
            return combine_members(job, events)
        if trainable == "last_blocks" and (part.share or not part.refit):
            return _train_last_blocks(job, events)
        if trainable in ("head", "last_blocks"):
            return (refit_head if part.refit else probe)(job, events)
        return fit_all_weights(job, events)


def _train_last_blocks(job: TrainingJob, events: EventWriter) -> FrozenModel:
    from patchline.pipeline.training.parts import last_blocks

    work = last_blocks.refit_last_blocks if job.part.refit else last_blocks.train_last_blocks
    if job.config.training.processes == 1:
        return work(job, events)
    last_blocks.check_shared_folder(job)
    with ProcessGroup(job) as group:
        return work(job, events, group.run)


def _between_both(job: TrainingJob, trained: TrainResult) -> FrozenModel:
    from patchline.pipeline.training.out_of_memory import explain_out_of_memory
    from patchline.pipeline.training.parts.fine_tuning import between_both

    with explain_out_of_memory():
        return between_both(job, trained)


def _get_ready() -> str:
    """Import what most training runs need, and describe this machine.

    The first optimizer of torch imports `torch._dynamo`.
    """
    for module in ("torch._dynamo", "patchline.pipeline.training.parts.last_blocks"):
        importlib.import_module(module)
    return detect_machine().model_dump_json()


if __name__ == "__main__":
    TRAINING.main(train, _get_ready)
