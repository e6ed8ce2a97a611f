"""Gradients that cannot be computed as it was begun are undone, and computed in another way.

If the device is out of memory, batches are divided further; if an operation has no deterministic
kernel, another one is used, and that is said.

Of several ranks, the others are summing gradients by then, so the ranks end, and all of them start
again from the last checkpoint, with smaller micro-batches from the step on that did not fit.

Outside training, batches are halved by `patchline.pipeline.models.inference`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from patchline.pipeline.errors import RunError
from patchline.pipeline.training.train_step import RollbackOnError, TrainStep
from patchline.pipeline.training.training_data import BatchPart
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import write_text

HALVINGS_FILE = "halvings.json"


class RanksRestart(Exception):  # noqa: N818 - an outcome that the ranks' launcher handles
    """All ranks have to start again from the last checkpoint, because one is out of memory."""


class OutOfMemoryRetry(RollbackOnError):  # noqa: N818 - no exception
    """Divides batches into as many micro-batches as the memory of the device requires.

    Args:
        events: gets a warning of what has changed.
        folder: the folder of the training run.
    """

    def __init__(self, events: EventWriter, folder: Path) -> None:
        super().__init__()
        self._events, self._folder = events, folder

    def recover(self, error: RuntimeError, step: TrainStep, part: BatchPart) -> Callable[[], None]:
        """Undo a failed attempt, and return what to do before the next one.

        Args:
            error: why it failed.
            step: the step that failed; its state is restored.
            part: the part of the whole batch that was computed.

        Raises:
            RunError: if memory is short and there is nothing to divide.
            RuntimeError: any other error, if nothing else can be tried.
        """
        if not isinstance(error, torch.OutOfMemoryError):
            return super().recover(error, step, part)
        self.restore(step.state)
        if not step.can_halve(part):
            raise RunError(
                "The device is out of memory even with two images at a time. Choose a smaller "
                "model or image size."
            ) from error
        return lambda: self._halve(step)

    def on_missing_kernel(self, operation: str) -> None:
        """Say that the weights are not repeatable bit for bit."""
        self._events.write(
            "warning",
            message=f"PyTorch's {operation} has no deterministic kernel for this GPU: training "
            "again with the same settings gives nearly the same weights, but not bit for bit.",
        )

    def _halve(self, step: TrainStep) -> None:
        """Halve the micro-batches from the next step on.

        Raises:
            RanksRestart: if other ranks wait for these gradients.
        """
        torch.cuda.empty_cache()
        step.state.halvings.append(step.state.step)
        if step.ranks.size > 1:
            write_text(self._folder / HALVINGS_FILE, json.dumps(step.state.halvings))
            raise RanksRestart
        self._say_halved(step)

    def resume(self, step: TrainStep) -> None:
        """Take the halving for which the ranks were started again, if there was one."""
        file = self._folder / HALVINGS_FILE
        if file.exists():
            halvings = [int(at) for at in json.loads(file.read_text(encoding="utf-8"))]
            if len(halvings) > len(step.state.halvings):
                step.state.halvings = halvings
                self._say_halved(step)

    def _say_halved(self, step: TrainStep) -> None:
        halvings = step.state.halvings
        halved = sum(at <= halvings[-1] for at in halvings)
        images = step.config.training.batch_size
        self._events.write(
            "warning",
            message=f"The device is out of memory: each batch of {images} images is now divided "
            f"into {1 << halved} micro-batches. The effective batch size is unchanged.",
        )


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
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
