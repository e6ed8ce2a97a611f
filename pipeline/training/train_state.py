"""The state of a training: everything that decides how it continues, as one value.

What is in here goes into a checkpoint, and nothing else does. The machinery around it (data,
device, clock, events) is made anew by each process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pipeline.errors import DamagedFileError
from pipeline.training.ema import MovingAverage
from pipeline.training.running_sums import RunningSums
from pipeline.training.step_plan import StepPlan
from pipeline.training.train_result import EpochRecord

Numbers = dict[str, Any]
"""What of a state is no tensor, as JSON."""
Tensors = dict[str, torch.Tensor]


@dataclass
class TrainState:
    """Weights, their average, the optimizer, the plan, and how far the training has come."""

    model: nn.Module
    average: MovingAverage
    optimizer: torch.optim.Optimizer
    plan: StepPlan
    step: int = 0
    training_seconds: float = 0.0
    """Time spent in steps, validation excluded; by all processes."""
    elapsed_seconds: float = 0.0
    """Time since the first step until the last checkpoint; by all processes."""
    history: list[EpochRecord] = field(default_factory=list)
    best: EpochRecord | None = None
    sums: RunningSums = field(default_factory=RunningSums)

    def tensors(self) -> Tensors:
        """Return every tensor by name; those of the model itself, not copies."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        averages = self.average.model.state_dict()
        found |= {f"average.{name}": tensor for name, tensor in averages.items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        return found

    def numbers(self) -> Numbers:
        """Return everything else."""
        return {
            "step": self.step,
            "training_seconds": self.training_seconds,
            "elapsed": self.elapsed_seconds,
            "plan": self.plan.knots,
            "history": [record.model_dump() for record in self.history],
            "best": self.best.model_dump() if self.best else None,
            "sums": vars(self.sums),
        }

    def restore(self, tensors: Tensors, numbers: Numbers) -> None:
        """Become the state that `tensors` and `numbers` were taken from.

        Raises:
            DamagedFileError: if the tensors are not of this model; nothing has changed then.
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
                "The checkpoint is not one of this model. Delete it, or train with the version of "
                "Patchline that wrote it."
            )
        self.model.load_state_dict(weights)
        self.average.model.load_state_dict(averages)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.plan.knots = StepPlan(numbers["plan"]).knots
        self.step = numbers["step"]
        self.training_seconds = numbers["training_seconds"]
        self.elapsed_seconds = numbers["elapsed"]
        self.history = [EpochRecord.model_validate(record) for record in numbers["history"]]
        self.best = EpochRecord.model_validate(numbers["best"]) if numbers["best"] else None
        self.sums = RunningSums(**numbers["sums"])


def _fit(tensors: Tensors, module: nn.Module) -> bool:
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    return {name: tensor.shape for name, tensor in tensors.items()} == shapes


def _fit_optimizer(moments: dict[int, Tensors], optimizer: torch.optim.Optimizer) -> bool:
    """Return whether every moment belongs to a parameter of its shape; counters have none."""
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
