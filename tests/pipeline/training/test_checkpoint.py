"""A checkpoint gives back the whole state of a training run, bit for bit."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.training.checkpoint import RestartPoint, load, save
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.optimizer import OPTIMIZERS, build_optimizer
from patchline.pipeline.training.recipe.weight_averaging import MovingAverage
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_result import EpochRecord
from patchline.pipeline.training.train_state import TrainState

RECORD = EpochRecord(
    epoch=1.5,
    step=6,
    train_loss=2 / 3,
    train_accuracy=0.5,
    validation_loss=1 / 3,
    validation_accuracy=0.7,
    learning_rate=1e-3,
    images_per_second=0.1 + 0.2,
)


def _state(seed: int = 1, name: Any = "adamw", *, steps: int = 0) -> TrainState:
    """Return a small model in training, with its average and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    config = OptimizerConfig(name=name, schedule="constant")
    optimizer = build_optimizer(config, model)
    state = TrainState(model, MovingAverage(model, 0.9), optimizer, StepPlan.of_steps(9))
    _train(state, steps)
    return state


def _train(state: TrainState, steps: int) -> None:
    for _ in range(steps):
        torch.manual_seed(100 + state.step)
        state.optimizer.zero_grad()
        loss: torch.Tensor = state.model(torch.randn(8, 5)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        state.optimizer.step()
        state.step += 1
        state.average.update(state.step)


def _same(one: TrainState, other: TrainState) -> bool:
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Weights, average, optimizer and all numbers are what they were, to the last bit."""
    saved, loaded = _state(steps=3), _state(seed=2)
    saved.history, saved.best, saved.elapsed_seconds = [RECORD], RECORD, 0.1 + 0.2
    saved.plan.end_after(2, 5)
    saved.sums.add(torch.tensor(1 / 3), torch.tensor(4), 8)
    saved.rate_cuts, saved.halvings = [2], [1, 1]
    saved.validation_seconds, saved.batch_norm_seconds = 0.3, 0.7
    save(tmp_path / "last.safetensors", saved)
    load(tmp_path / "last.safetensors", loaded)
    assert loaded.numbers() == saved.numbers()
    assert _same(saved, loaded)


def test_every_part_of_a_state_is_in_its_checkpoint() -> None:
    """A field that is added to the state and forgotten in the checkpoint is noticed here."""
    state = _state(steps=1)
    tensors = {"model", "average", "optimizer"}
    numbers = {{"elapsed": "elapsed_seconds"}.get(key, key) for key in state.numbers()}
    assert {field.name for field in fields(state)} - tensors == numbers - {"optimizer_groups"}
    assert {name.partition(".")[0] for name in state.tensors()} == tensors


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_training_resumes_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    """Steps after a load lead to the same state as the same steps without a stop."""
    stopped, resumed = _state(name=name, steps=3), _state(seed=2, name=name)
    save(tmp_path / "last.safetensors", stopped)
    load(tmp_path / "last.safetensors", resumed)
    _train(resumed, steps=3)
    assert _same(_state(name=name, steps=6), resumed)


def test_another_models_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """A state whose shapes differ is refused before any part of it is restored."""
    other = _state(seed=2)
    other.model[2] = nn.Linear(6, 4)  # type: ignore[operator]  # a Sequential takes an index
    before = {name: tensor.clone() for name, tensor in other.tensors().items()}
    save(tmp_path / "last.safetensors", _state())
    with pytest.raises(DamagedFileError, match="belongs to another model"):
        load(tmp_path / "last.safetensors", other)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.tensors().items())


def test_a_restart_point_stays_after_a_restart() -> None:
    """An optimizer that continues with the tensors of the copy leaves the next copy alone.

    There is one copy of the state: a newer one takes the memory of the one before.
    """
    state, expected = _state(steps=2), _state(steps=2)
    point = RestartPoint.of(state)
    places = {name: tensor.data_ptr() for name, tensor in point.tensors.items()}
    point = RestartPoint.of(state, point)
    assert {name: tensor.data_ptr() for name, tensor in point.tensors.items()} == places
    for _ in range(2):  # it diverges twice
        _train(state, steps=2)
        point.restore(state)
        assert _same(state, expected)
        point = RestartPoint.of(state, point)
    assert point.step == 2
