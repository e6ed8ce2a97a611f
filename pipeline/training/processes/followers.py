"""The processes beside the leader: they compute their part of each batch, as it announces."""

from __future__ import annotations

from contextlib import suppress

import torch

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.training.faults.data_workers import dead_workers_named
from patchline.pipeline.training.faults.memory import memory_named, undone_if_it_fails
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.processes.several_processes import Kind, SeveralProcesses


def follow(training: Training, group: SeveralProcesses) -> None:
    """Do what the leader announces, until it announces the end."""
    with dead_workers_named(), memory_named():
        while True:
            kind, value, parts = group.announcement()
            if kind is Kind.END:
                return
            if kind is Kind.STATE:
                group.take_state(training.state, int(value))
                batches = training.batches()
                batch = next(batches)
            elif kind is Kind.GRADIENTS:
                _compute(training, batch, value, parts)
            else:
                training.step.update_own_weights(training.state, value)
                batch = next(batches)


def _compute(training: Training, batch: Batch, progress: float, parts: int) -> None:
    """Compute gradients; if a process runs out of memory, the leader announces smaller parts."""
    with suppress(torch.OutOfMemoryError), undone_if_it_fails(training.state):
        training.step.gradients_at(training.state, batch, progress, parts)
