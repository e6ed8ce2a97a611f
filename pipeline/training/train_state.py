"""The training state: all that decides how training continues, and the sums of an epoch.

Shapes: S steps that are pending.

This is exactly what a checkpoint holds. Everything else (data, device, clock, events) is created
again by each process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.training.recipe.optimizer import LossScale
from patchline.pipeline.training.recipe.weight_averaging import MovingAverage
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_result import EpochRecord

_MOST_PENDING = 1000


class RunningSums:
    """Loss, accuracy and duration of the current epoch, on the augmented images.

    The values of each step stay on their device until somebody reads a sum, so that adding them
    does not wait for the device. With several ranks, they stay on their rank until then: what is
    pending is read by all of them together.

    Args:
        total: a function that returns the sum of a tensor over the ranks.
    """

    def __init__(
        self, total: Callable[[torch.Tensor], torch.Tensor] = lambda values: values
    ) -> None:
        self._total = total
        self.restore({})

    def restore(self, numbers: dict[str, float]) -> None:
        """Take the sums that `numbers` has returned; without any, start at zero."""
        self.seconds = numbers.get("seconds", 0.0)
        """Time spent in the steps of the epoch; whoever does the steps adds it."""
        self._loss, self._correct = numbers.get("loss", 0.0), int(numbers.get("correct", 0))
        self.images = int(numbers.get("images", 0))
        self.total_images = int(numbers.get("total_images", 0))
        self._pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, correct: torch.Tensor, images: int) -> None:
        """Add the images of one step, with this rank's part of their mean loss."""
        self._pending.append((loss, correct, images))
        self.images += images
        self.total_images += images
        if len(self._pending) >= _MOST_PENDING:
            self.read()

    def next_epoch(self) -> None:
        """Reset the sums of the epoch; the image count of the whole training stays."""
        self._loss, self._correct, self.images, self.seconds = 0.0, 0, 0, 0.0
        self._pending.clear()

    def numbers(self) -> dict[str, float]:
        """Return the sums, for `restore`."""
        self.read()
        return {
            "loss": self._loss,
            "correct": self._correct,
            "images": self.images,
            "total_images": self.total_images,
            "seconds": self.seconds,
        }

    @property
    def mean_loss(self) -> float:
        """Mean loss per image in this epoch."""
        self.read()
        return self._loss / max(1, self.images)

    @property
    def accuracy(self) -> float:
        """Fraction of this epoch's images that were classified correctly."""
        self.read()
        return self._correct / max(1, self.images)

    def read(self) -> None:
        """Read what is pending from the device and the other ranks, all at once."""
        if not self._pending:
            return
        losses, corrects, images = zip(*self._pending, strict=True)
        self._pending.clear()
        both = self._total(
            torch.stack([torch.stack(losses).float(), torch.stack(corrects).float()])
        )
        losses_S, corrects_S = both.tolist()
        for loss, count in zip(losses_S, images, strict=True):
            self._loss += loss * count
        self._correct += int(sum(corrects_S))


Numbers = dict[str, Any]
"""The part of a state that is not tensors, as JSON."""
Tensors = dict[str, torch.Tensor]


@dataclass
class TrainState:
    """Weights, their average, the optimizer, the plan and the progress."""

    model: nn.Module
    average: MovingAverage
    optimizer: torch.optim.Optimizer
    plan: StepPlan
    loss_scale: LossScale = field(default_factory=LossScale)
    step: int = 0
    training_seconds: float = 0.0
    """Time spent in steps, without validation, over all attempts."""
    validation_seconds: float = 0.0
    """Time spent in validations, over all attempts."""
    batch_norm_seconds: float = 0.0
    """Time spent before validations on batch-norm statistics of averaged weights."""
    elapsed_seconds: float = 0.0
    """Time from the first step to the last checkpoint, over all attempts."""
    history: list[EpochRecord] = field(default_factory=list)
    best: EpochRecord | None = None
    sums: RunningSums = field(default_factory=RunningSums)
    rate_cuts: list[int] = field(default_factory=list)
    """Steps from which the learning rate is halved, after a divergence."""
    halvings: list[int] = field(default_factory=list)
    """Steps from which micro-batches are half as large, after the device ran out of memory."""

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the model; listing them walks through all its modules."""
        return list(self.model.parameters())

    @cached_property
    def buffers(self) -> list[torch.Tensor]:
        """All buffers of the model, such as batch-norm statistics."""
        return list(self.model.buffers())

    @property
    def rate_factor(self) -> float:
        """Factor of the learning rate of the next step."""
        return float(0.5 ** sum(step <= self.step for step in self.rate_cuts))

    @property
    def halvings_before_next_step(self) -> int:
        """How often the micro-batches have been halved."""
        return sum(step <= self.step for step in self.halvings)

    def tensors(self) -> Tensors:
        """Return all tensors by name, without copying."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        averages = self.average.model.state_dict()
        tensors |= {f"average.{name}": tensor for name, tensor in averages.items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        return tensors

    def numbers(self) -> Numbers:
        """Return everything else."""
        return {
            "step": self.step,
            "training_seconds": self.training_seconds,
            "validation_seconds": self.validation_seconds,
            "batch_norm_seconds": self.batch_norm_seconds,
            "elapsed": self.elapsed_seconds,
            "plan": self.plan.knots,
            "history": [record.model_dump() for record in self.history],
            "best": self.best.model_dump() if self.best else None,
            "sums": self.sums.numbers(),
            "rate_cuts": self.rate_cuts,
            "halvings": self.halvings,
            "loss_scale": self.loss_scale.numbers(),
            "optimizer_groups": [_numbers_of(group) for group in self.optimizer.param_groups],
        }

    def restore(self, tensors: Tensors, numbers: Numbers) -> None:
        """Restore the state from `tensors` and `numbers`.

        Raises:
            DamagedFileError: if the tensors are of another model; the state is then unchanged.
        """
        weights, averages = _below(tensors, "model."), _below(tensors, "average.")
        moments: dict[int, Tensors] = {}
        for name, tensor in _below(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        if not (
            _fit(weights, self.model)
            and _fit(averages, self.average.model)
            and _fit_optimizer(moments, self.optimizer)
        ):
            raise DamagedFileError(
                "The checkpoint belongs to another model. Delete it, or train with the version of "
                "Patchline that wrote it."
            )
        self.model.load_state_dict(weights)
        self.average.model.load_state_dict(averages)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        groups = self.optimizer.param_groups
        for group, saved in zip(groups, numbers["optimizer_groups"], strict=True):
            group.update(saved)
        self.loss_scale.restore(numbers["loss_scale"])
        self.plan.knots = StepPlan(numbers["plan"]).knots
        self.step = numbers["step"]
        self.training_seconds = numbers["training_seconds"]
        self.validation_seconds = numbers["validation_seconds"]
        self.batch_norm_seconds = numbers.get("batch_norm_seconds", 0.0)  # none in older ones
        self.elapsed_seconds = numbers["elapsed"]
        self.history = [EpochRecord.model_validate(record) for record in numbers["history"]]
        self.best = EpochRecord.model_validate(numbers["best"]) if numbers["best"] else None
        self.sums.restore(numbers["sums"])
        self.rate_cuts = list(numbers["rate_cuts"])
        self.halvings = list(numbers["halvings"])


def _numbers_of(group: dict[str, Any]) -> Numbers:
    """Return the numbers of a parameter group; schedule_free counts its steps there."""
    return {key: value for key, value in group.items() if isinstance(value, bool | int | float)}


def _fit(tensors: Tensors, module: nn.Module) -> bool:
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    return {name: tensor.shape for name, tensor in tensors.items()} == shapes


def _fit_optimizer(moments: dict[int, Tensors], optimizer: torch.optim.Optimizer) -> bool:
    """Return whether every moment has the shape of its parameter; counters are scalars."""
    shapes = [each.shape for group in optimizer.param_groups for each in group["params"]]
    return all(
        index < len(shapes)
        and all(t.ndim == 0 or t.shape == shapes[index] for t in values.values())
        for index, values in moments.items()
    )


def _below(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
