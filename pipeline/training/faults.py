"""Faults of a training run: a loss or gradient that is not finite, a dead data-loader worker.

All ranks notice a divergence in the same step, because the norm of the gradient is the same on all
of them.

On a CPU it is noticed before the update. On a GPU reading a value would wait for the device in each
step, so it is noticed one step later; nothing is validated or saved in between, and training
restarts from a state before it.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchline.pipeline.data.batches.batch_order import BatchOrder, row_of
from patchline.pipeline.errors import WorkerError
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workspace.files.atomic_files import open_replacing, write_text


class Diverged(Exception):  # noqa: N818 - an outcome that the loop handles
    """The loss or the gradient of a step is not finite, or the loss of the weights after it."""

    def __init__(
        self, step: int, learning_rate: float, loss: float, norm: float, *, validated: bool = False
    ) -> None:
        self.step, self.learning_rate, self.loss, self.norm = step, learning_rate, loss, norm
        what = f"gradient norm became {norm}" if math.isfinite(loss) else f"loss became {loss}"
        if validated:
            what = f"validation {what}"
        super().__init__(f"The {what} at step {step + 1}, at learning rate {learning_rate:.3g}")


@dataclass(frozen=True)
class _Pending:
    step: int
    learning_rate: float
    values_2: torch.Tensor
    """Loss and norm, on the way to the CPU."""
    arrived: torch.cuda.Event


class FiniteCheck:
    """Notice losses and gradients that are not finite.

    Args:
        total: a function that returns the sum of a tensor over the ranks.
    """

    def __init__(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._total = total
        self._pending: _Pending | None = None

    def check(
        self, step: int, learning_rate: float, loss: torch.Tensor, norm: torch.Tensor
    ) -> None:
        """Check a step before its update; on a GPU, check the step before it.

        Args:
            step: number of the steps before it.
            learning_rate: the learning rate of the step.
            loss: the loss of this rank's part of the batch, on the device.
            norm: the norm of the gradient, on the device.

        Raises:
            Diverged: names the step.
        """
        values_2 = torch.stack([loss, norm.float()])
        if values_2.device.type != "cuda":
            self._check(step, learning_rate, values_2)
            return
        on_cpu_2 = torch.empty(2, pin_memory=True)
        on_cpu_2.copy_(values_2, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        arrived.record()
        earlier, self._pending = self._pending, _Pending(step, learning_rate, on_cpu_2, arrived)
        self._settle(earlier)

    def settle(self) -> None:
        """Check what is pending, before anything is validated or saved.

        Raises:
            Diverged: names the step.
        """
        pending, self._pending = self._pending, None
        self._settle(pending)

    def forget(self) -> None:
        """Drop what is pending, because training restarts."""
        self._pending = None

    def _settle(self, pending: _Pending | None) -> None:
        if pending:
            pending.arrived.synchronize()
            self._check(pending.step, pending.learning_rate, pending.values_2)

    def _check(self, step: int, learning_rate: float, values_2: torch.Tensor) -> None:
        loss, norm = values_2.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Diverged(step, learning_rate, float(self._total(values_2[0])), norm)


def batch_files(diverged: Diverged, folder: Path) -> tuple[Path, Path]:
    """Return the files that `save_batch` writes."""
    name = f"diverged_step_{diverged.step + 1}"
    return folder / f"{name}.npz", folder / f"{name}.json"


def save_batch(diverged: Diverged, data: TrainingData, order: BatchOrder, folder: Path) -> None:
    """Write the batch of a step that diverged.

    `diverged_step_N.npz` holds the augmented images (uint8, B H W C), or their tokens (float16, B N
    D) where these are trained from, and their class indices;
    `diverged_step_N.json` the step, its learning rate, loss and gradient norm, and the path of each
    image.
    """
    again = order.from_step(diverged.step)
    chosen = next(iter(again))
    rows = [row_of(draw, len(data.paths)) for _, draw in chosen]
    batches = data.batches(again, workers=0, device=torch.device("cpu"))
    images_BHWC, targets = next(iter(batches))
    arrays, description = batch_files(diverged, folder)
    with open_replacing(arrays) as opened:
        np.savez_compressed(opened, images=images_BHWC.numpy(), labels=targets.numpy())
    content = {
        "step": diverged.step + 1,
        "epoch": chosen[0][0] + 1,
        "learning_rate": diverged.learning_rate,
        "loss": str(diverged.loss),  # JSON has no nan
        "gradient_norm": str(diverged.norm),
        "images": [{"path": data.paths[row], "label": data.class_of(row)} for row in rows],
    }
    write_text(description, json.dumps(content, indent=2))


_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ([^.]*)\.")
_POLLS, _POLL_SECONDS = 40, 0.05
_ENDED = re.compile(r"DataLoader worker .*exited unexpectedly(?: with exit code (\d+))?")


@contextmanager
def dead_workers_named() -> Iterator[None]:
    """Raise an error with the reason if a data-loader worker dies inside the block.

    Torch raises a plain `RuntimeError`, wherever the training process is at that moment; while it
    is fetching a batch, the connection to the worker may break first.

    Raises:
        WorkerError: names the signal or the exit code.
    """
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        reason = _reason(error if isinstance(error, RuntimeError) else _death_behind(error))
        if reason is None:
            raise
        raise WorkerError(
            f"A data-loader worker {reason}. The machine may have run out of memory: lower "
            "data.workers, or start the run again to resume training."
        ) from error


def _death_behind(error: Exception) -> Exception:
    """Return torch's error about the worker whose connection broke, once it can tell."""
    from torch._C import _error_if_any_worker_fails

    try:
        for _ in range(_POLLS):
            _error_if_any_worker_fails()
            time.sleep(_POLL_SECONDS)
    except RuntimeError as told:
        return told
    return error


def _reason(error: BaseException) -> str | None:
    """Return how a worker ended, as torch's error or an error before it says; None for others."""
    reason = None
    current: BaseException | None = error
    while current is not None:
        if killed := _KILLED.search(str(current)):
            return f"was killed by the signal '{killed[1].strip()}'"
        if ended := _ENDED.search(str(current)):
            code = int(ended[1]) if ended[1] else _exit_code(current)
            if code is not None and code < 0:
                return f"was killed by the signal '{signal.strsignal(-code)}'"
            reason = f"exited with code {code}" if code else reason or "exited unexpectedly"
        current = current.__cause__ or current.__context__
    return reason


def _exit_code(error: BaseException) -> int | None:
    """Return how a worker of the loader that raised an error has ended, if one has failed.

    Torch may notice that a worker is gone before it has asked the system why.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        workers = getattr(frame.f_locals.get("self"), "_workers", ())
        for code in (worker.exitcode for worker in workers):
            if code:
                return int(code)
    return None


def survive_kills() -> None:
    """Start the process that deletes this process's semaphores in a session of its own.

    The queues of the data-loader workers are named semaphores in /dev/shm. Python's resource
    tracker deletes them once everything that used them has ended, but by default it is in the
    process group of the training, which is killed as a whole.
    """
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001 - has no public way to be started
    if tracker._fd is not None or sys.platform == "win32":  # noqa: SLF001
        return
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"from multiprocessing.resource_tracker import main; main({reading})",
        ],
        pass_fds=[reading],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    tracker._fd, tracker._pid = writing, process.pid  # noqa: SLF001
