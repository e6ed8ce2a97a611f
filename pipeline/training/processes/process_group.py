"""The processes that train together, as the training loop sees them.

The leader, rank 0, runs the training loop: it alone reads the clock, decides, validates, and writes
events and files. The other processes follow its announcements (`followers.py`), so the processes
cannot disagree. In a training run of one process, everything here does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.processes.batch_parts import BatchPart
from patchline.pipeline.training.train_state import TrainState

Value = TypeVar("Value", bound=FrozenModel)
Keys = list[tuple[int, int]]
"""(epoch, row) of the images that a process loads for a batch."""


class ProcessGroup:
    """The only process of a training run; `several_processes.py` has the other form."""

    rank = 0
    size = 1
    devices = 1
    """Number of devices; processes on a CPU share one."""

    def own_threads(self, requested: int | None) -> int | None:
        """Return this process's part of the torch threads; None for torch's default."""
        return requested

    def own_device(self, name: str) -> torch.device:
        """Return this process's device of a kind."""
        return torch.device(name)

    def synchronised(self, model: nn.Module) -> nn.Module:
        """Return the model with batch norm over the images of all processes, where supported."""
        return model

    def warning(self, model: nn.Module) -> str:  # noqa: ARG002 - one process needs none
        """Return what a user has to know about training this model in the group; usually empty."""
        return ""

    def divide(self, order: BatchOrder, *, mixing: bool) -> Iterable[Keys]:  # noqa: ARG002 - one process mixes whole batches
        """Return the images of each batch that this process loads."""
        return order

    def part(self, step: int, images: int) -> BatchPart:  # noqa: ARG002 - always the whole batch
        """Return the part of a step's batch, of which `images` were loaded."""
        return BatchPart.whole(images)

    def from_leader(self, kind: type[Value], compute: Callable[[], Value]) -> Value:  # noqa: ARG002 - others have to read it
        """Return what the leader computes, in every process."""
        return compute()

    def announce_gradients(self, progress: float, parts: int) -> None:
        """Let the others compute gradients: at a progress, in a number of micro-batches."""

    def announce_update(self, learning_rate: float) -> None:
        """Let the others update their weights."""

    def announce_state(self, state: TrainState) -> None:
        """Let the others take the leader's state."""

    def announce_end(self) -> None:
        """Let the others end."""

    def sharing_memory_errors(self) -> AbstractContextManager[None]:
        """Raise torch.OutOfMemoryError in all processes if the block raises it in one."""
        return nullcontext()

    def sum_up(
        self,
        model: nn.Module,  # noqa: ARG002 - its gradients are complete
        loss: torch.Tensor,
        correct: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum the gradients, the loss and the correct images of all processes' parts."""
        return loss, correct

    def alone(self) -> AbstractContextManager[None]:
        """Use the threads of all processes inside the block, while the others wait."""
        return nullcontext()
