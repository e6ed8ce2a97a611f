"""The training state: everything that decides how training continues, as one value.

This is exactly what a checkpoint holds. Everything else (data, device, clock, events) is created
again by each process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.training.length.step_plan import StepPlan
from patchline.pipeline.training.recipe.ema import MovingAverage
from patchline.pipeline.training.recipe.loss_scale import LossScale
from patchline.pipeline.training.running_sums import RunningSums
from patchline.pipeline.training.train_result import EpochRecord

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
