"""One of two processes: `python -P -m tests.pipeline.training.processes.training_ranks`.

Arguments: a folder with jobs, the rank, and the number of processes. The leader writes gradients of
the jobs `gradients-*`, and trains the others, `stopped` in two attempts. Of `gradients-memory` the
second process runs out of memory with more than three images; of `diverged` it once gets infinite
images.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.processes.followers import follow
from patchline.pipeline.training.processes.leading import lead
from patchline.pipeline.training.processes.several_processes import SeveralProcesses
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import leave


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    pass


class _StoppingWriter(EventWriter):
    """Raises when three steps have been done."""

    def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
        super().progress(done, total, unit, **values)
        if done == 3:
            raise _Stop


def _small_memory(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    if len(inputs[0]) > 3:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class _InfiniteOnce:
    """Replaces the images of the second batch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        self.calls += 1
        return (inputs[0] * float("inf"),) if self.calls == 2 else inputs


def main(folder: Path, rank: int, size: int) -> None:
    """Do all jobs of the folder, in the order of their names."""
    checkpoint._PAUSE_SECONDS, checkpoint._SHARE = 0.0, float("inf")  # one after each step
    store = FileStore(str(folder / "store"), size)
    group = SeveralProcesses(rank, size, "cpu", store)
    for file in sorted(folder.glob("*.json")):
        job = TrainingJob.model_validate_json(file.read_text(encoding="utf-8"))
        attempts = 2 if file.stem.startswith("stopped") else 1
        for attempt in range(attempts):
            if rank:
                training = Training(job, EventWriter(Path(os.devnull)), group)
                if file.stem == "gradients-memory":
                    training.state.model.register_forward_pre_hook(_small_memory)
                if file.stem == "diverged":
                    training.state.model.register_forward_pre_hook(_InfiniteOnce())
                follow(training, group)
            elif file.stem.startswith("gradients"):
                _write_gradients(job, group)
            else:
                _train(job, group, stop=attempt + 1 < attempts)
    leave()


def _write_gradients(job: TrainingJob, group: SeveralProcesses) -> None:
    training = Training(job, EventWriter(job.folder / "events.jsonl"), group)
    state, last = training.state, training.order.steps_per_epoch - 1
    for step in (0, last):
        state.step = step
        group.announce_state(state)
        found = training.dividing.gradients(training.step, next(training.batches()))
        named = {
            name: each.grad
            for name, each in state.model.named_parameters()
            if each.grad is not None
        }
        values = {"loss": found.loss, "norm": found.norm, "correct": found.correct}
        save_file({**named, **values}, job.folder / f"gradients-{step}.safetensors")
    group.announce_end()


def _train(job: TrainingJob, group: SeveralProcesses, *, stop: bool) -> None:
    kind = _StoppingWriter if stop else EventWriter
    events = kind(job.folder / "events.jsonl")
    try:
        lead(job, events, group)
    except _Stop:
        group.announce_end()
    events.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
