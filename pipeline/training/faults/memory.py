"""A step that cannot be computed as it was begun is undone, and computed in another way.

If the device is out of memory, batches are divided further; if an operation has no deterministic
kernel, another one is used, and that is said.

Outside training, batches are halved by `patchline.pipeline.models.fitting_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.errors import RunError
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import Gradients, TrainStep
from patchline.pipeline.workers.event_log import EventWriter


class BeforeGradients:
    """A state before gradients are computed, to which it can return; its weights do not change."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._buffers = [buffer.clone() for buffer in state.model.buffers()]

    def restore(self) -> None:
        """Restore the buffers, such as batch-norm statistics, and drop the gradients."""
        for buffer, before in zip(self._state.model.buffers(), self._buffers, strict=True):
            buffer.copy_(before)
        self._state.optimizer.zero_grad(set_to_none=True)


@contextmanager
def undone_if_it_fails(state: TrainState) -> Iterator[None]:
    """Undo the gradients that the block computes if it fails.

    Raises:
        RuntimeError: if it does; torch.OutOfMemoryError is one.
    """
    before = BeforeGradients(state)
    try:
        yield
    except RuntimeError:
        before.restore()
        raise


@dataclass(frozen=True)
class DividingBatches:
    """Gradients in as many micro-batches as the memory of the device requires."""

    state: TrainState
    batch_size: int
    """Images in a batch of all processes together."""
    events: EventWriter

    def gradients(self, step: TrainStep, batch: Batch) -> Gradients:
        """Compute the gradients of a batch; with smaller micro-batches if memory is short.

        What failed is no longer in memory when it is tried again.

        Raises:
            RunError: if there is nothing to divide.
        """
        while True:
            try:
                with undone_if_it_fails(self.state):
                    return step.compute_gradients(self.state, batch)
            except torch.OutOfMemoryError as error:
                if not step.can_halve(self.state, len(batch[1])):
                    raise RunError(
                        "The device is out of memory even with two images at a time. Choose a "
                        "smaller model or image size."
                    ) from error
            except RuntimeError as error:
                operation = step.kernels.missing(error)
                if not operation:
                    raise
                self._say_not_repeatable(operation)
                continue
            # The error is gone here, and with its traceback what the failed step had computed.
            torch.cuda.empty_cache()
            self._halve(step)

    def _say_not_repeatable(self, operation: str) -> None:
        self.events.write(
            "warning",
            message=f"PyTorch's {operation} has no deterministic kernel for this GPU: training "
            "again with the same settings gives nearly the same weights, but not bit for bit.",
        )

    def _halve(self, step: TrainStep) -> None:
        self.state.halvings.append(self.state.step)
        parts = step.micro_batches_at(self.state)
        self.events.write(
            "warning",
            message=f"The device is out of memory: each batch of {self.batch_size} images is now "
            f"divided into {parts} micro-batches. The effective batch size is unchanged.",
        )


@contextmanager
def memory_named() -> Iterator[None]:
    """Say what to change if a device is out of memory where batches are not divided.

    Raises:
        RunError: if it is.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            "The device has too little memory for the images of a batch, or for the state of the "
            "optimizer. Lower training.batch_size, or choose a smaller model."
        ) from error
