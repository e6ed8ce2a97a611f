"""A step that cannot be computed as it was begun is undone, and computed in another way.

If the device is out of memory, batches are divided further; if an operation has no deterministic
kernel, another one is used, and that is said.

Of several ranks, the others are summing gradients by then, so the ranks end, and all of them start
again from the last checkpoint, with smaller micro-batches from the step on that did not fit.

Outside training, batches are halved by `patchline.pipeline.models.fitting_batches`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.errors import RunError
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.training.processes.batch_parts import BatchPart
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import Gradients, TrainStep
from patchline.pipeline.workers.event_log import EventWriter

HALVINGS_FILE = "halvings.json"


class RanksRestart(Exception):  # noqa: N818 - an outcome that the ranks' launcher handles
    """All ranks have to start again from the last checkpoint, because one is out of memory."""


class BeforeGradients:
    """A state before gradients are computed, to which it can return; its weights do not change."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._copies = [buffer.clone() for buffer in state.buffers]

    @torch.no_grad()
    def renew(self) -> None:
        """Take the state as it is now, which is a single operation on a GPU."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._state.buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers, such as batch-norm statistics, and drop the gradients."""
        if self._copies:
            torch._foreach_copy_(self._state.buffers, self._copies)
        self._state.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class UndoneGradients:
    """Gradients of a state's model; computing them changes nothing where it fails."""

    state: TrainState

    @cached_property
    def _before(self) -> BeforeGradients:
        return BeforeGradients(self.state)

    def compute(
        self, step: TrainStep, batch: Batch, part: BatchPart, on_missing: Callable[[str], None]
    ) -> Gradients:
        """Compute the gradients of a batch.

        Args:
            step: computes them; with other kernels once an operation has no deterministic one.
            batch: what this rank has loaded.
            part: of the whole batch that this is.
            on_missing: called with the name of such an operation.

        Raises:
            RuntimeError: if it fails otherwise; torch.OutOfMemoryError is one.
        """
        self._before.renew()
        while True:
            try:
                return step.compute_gradients(self.state, batch, part)
            except torch.OutOfMemoryError:
                self._before.restore()
                raise
            except RuntimeError as error:
                self._before.restore()
                operation = step.kernels.missing(error)
                if not operation:
                    raise
            on_missing(operation)


@dataclass(frozen=True)
class DividingBatches:
    """Gradients in as many micro-batches as the memory of the device requires."""

    state: TrainState
    batch_size: int
    """Images in a batch of all ranks together."""
    events: EventWriter
    folder: Path
    """Of the training run."""

    @cached_property
    def _undone(self) -> UndoneGradients:
        return UndoneGradients(self.state)

    def gradients(self, step: TrainStep, batch: Batch, part: BatchPart | None = None) -> Gradients:
        """Compute the gradients of a batch; with smaller micro-batches if memory is short.

        What failed is no longer in memory when it is tried again.

        Args:
            step: computes them.
            batch: what this rank has loaded.
            part: of the whole batch that this is; None for all of it.

        Raises:
            RunError: if there is nothing to divide.
            RanksRestart: if other ranks wait for these gradients.
        """
        part = part or BatchPart.whole(len(batch[1]))
        while True:
            try:
                return self._undone.compute(step, batch, part, self._say_not_repeatable)
            except torch.OutOfMemoryError as error:
                if not step.can_halve(self.state, part):
                    raise RunError(
                        "The device is out of memory even with two images at a time. Choose a "
                        "smaller model or image size."
                    ) from error
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
        if step.ranks.size > 1:
            write_text(self.folder / HALVINGS_FILE, json.dumps(self.state.halvings))
            raise RanksRestart
        self._say_it(step)

    def resume(self, step: TrainStep) -> None:
        """Take the halving for which the ranks were started again, if there was one."""
        file = self.folder / HALVINGS_FILE
        if file.exists():
            halvings = [int(at) for at in json.loads(file.read_text(encoding="utf-8"))]
            if len(halvings) > len(self.state.halvings):
                self.state.halvings = halvings
                self._say_it(step)

    def _say_it(self, step: TrainStep) -> None:
        halved = sum(at <= self.state.halvings[-1] for at in self.state.halvings)
        parts = step.config.training.accumulation * 2**halved
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
            "The device has too little memory for the model, the images of a batch, or the state "
            "of the optimizer. Lower training.batch_size, or choose a smaller model."
        ) from error
