"""Divergence: a loss or a gradient that is not finite, and the batch that caused it.

All ranks notice it in the same step, because the norm of the gradient is the same on all of them.

On a CPU it is noticed before the update. On a GPU reading a value would wait for the device in each
step, so it is noticed one step later; nothing is validated or saved in between, and training
restarts from a state before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from patchline.pipeline.data.batches.batch_order import BatchOrder, row_of
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workspace.files.atomic_files import replacing, write_text


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
        total: returns the sum of a tensor over the ranks.
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
            learning_rate: of the step.
            loss: of this rank's part, on the device.
            norm: of the gradient, on the device.

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
    with replacing(arrays) as temporary, temporary.open("wb") as opened:
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
