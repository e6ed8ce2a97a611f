"""A checkpoint gives back the whole state of a training run, bit for bit."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.training.checkpoints.checkpoint import RestartPoint, load, save
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.length.step_plan import StepPlan
from patchline.pipeline.training.recipe.ema import MovingAverage
from patchline.pipeline.training.recipe.optimizer import OPTIMIZERS, build_optimizer
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


def _state(seed: int, name: Any = "adamw") -> TrainState:
    """Return a small model in training, with its average and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    config = OptimizerConfig(name=name, schedule="constant")
    optimizer = build_optimizer(config, model)
    return TrainState(model, MovingAverage(model, 0.9), optimizer, StepPlan.of_steps(9))


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
    saved, loaded = _state(seed=1), _state(seed=2)
    _train(saved, steps=3)
    saved.history, saved.best, saved.elapsed_seconds = [RECORD], RECORD, 0.1 + 0.2
    saved.plan.end_after(2, 5)
    saved.sums.add(torch.tensor(1 / 3), torch.tensor(4), 8)
    saved.rate_cuts, saved.halvings = [2], [1, 1]
    saved.validation_seconds, saved.batch_norm_seconds = 0.3, 0.7
    save(tmp_path / "last.safetensors", saved)
    assert not _same(saved, loaded)
    load(tmp_path / "last.safetensors", loaded)
    assert loaded.numbers() == saved.numbers()
    assert _same(saved, loaded)


def test_every_part_of_a_state_is_in_its_checkpoint() -> None:
    """A field that is added to the state and forgotten in the checkpoint is noticed here."""
    state = _state(seed=1)
    tensors = {"model", "average", "optimizer"}
    numbers = {{"elapsed": "elapsed_seconds"}.get(key, key) for key in state.numbers()}
    assert {field.name for field in fields(state)} - tensors == numbers - {"optimizer_groups"}
    _train(state, steps=1)
    assert {name.partition(".")[0] for name in state.tensors()} == tensors


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_training_resumes_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    """Steps after a load lead to the same state as the same steps without a stop."""
    whole, stopped, resumed = (_state(seed, name) for seed in (1, 1, 2))
    _train(whole, steps=6)
    _train(stopped, steps=3)
    save(tmp_path / "last.safetensors", stopped)
    load(tmp_path / "last.safetensors", resumed)
    _train(resumed, steps=3)
    assert _same(whole, resumed)


def test_a_checkpoint_before_the_first_step_works_too(tmp_path: Path) -> None:
    """An optimizer that has no state yet is saved and loaded."""
    saved, loaded = _state(seed=1), _state(seed=2)
    save(tmp_path / "last.safetensors", saved)
    load(tmp_path / "last.safetensors", loaded)
    assert _same(saved, loaded)


def test_another_models_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """A state whose shapes differ is refused before any part of it is restored."""
    saved, other = _state(seed=1), _state(seed=2)
    other.model[2] = nn.Linear(6, 4)  # type: ignore[operator]  # a Sequential takes an index
    save(tmp_path / "last.safetensors", saved)
    before = {name: tensor.clone() for name, tensor in other.tensors().items()}
    with pytest.raises(DamagedFileError, match="belongs to another model"):
        load(tmp_path / "last.safetensors", other)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.tensors().items())


def test_a_failed_write_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """When writing fails, the old file is whole and no temporary file is left."""
    state, file = _state(seed=1), tmp_path / "last.safetensors"
    _train(state, steps=1)
    save(file, state)
    before = file.read_bytes()
    state.step = object()  # type: ignore[assignment]  # what JSON cannot hold
    with pytest.raises(TypeError):
        save(file, state)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_restart_point_takes_the_memory_of_the_one_before() -> None:
    """So there is one copy of the state, and it is that of the newer state."""
    state = _state(seed=1)
    _train(state, steps=1)
    first = RestartPoint.of(state)
    places = {name: tensor.data_ptr() for name, tensor in first.tensors.items()}
    _train(state, steps=1)
    second = RestartPoint.of(state, first)
    assert {name: tensor.data_ptr() for name, tensor in second.tensors.items()} == places
    assert second.step == 2
    assert all(torch.equal(second.tensors[name], each) for name, each in state.tensors().items())


def test_a_restart_point_stays_after_a_restart() -> None:
    """An optimizer that continues with the tensors of the copy leaves the next copy alone."""
    state, expected = _state(seed=1), _state(seed=1)
    _train(state, steps=2)
    _train(expected, steps=2)
    point = RestartPoint.of(state)
    for _ in range(2):  # it diverges twice
        _train(state, steps=2)
        point.restore(state)
        assert _same(state, expected)
        point = RestartPoint.of(state, point)


def test_ranks_without_a_copy_restart_with_that_of_the_first() -> None:
    """Eight processes of one machine do not each keep the same weights and moments."""
    first, other = _state(seed=1), _state(seed=1)
    for state in (first, other):
        _train(state, steps=2)
    of_first, of_other = RestartPoint.of(first), RestartPoint.of(other, copies=False)
    assert not of_other.tensors
    for state in (first, other):
        _train(state, steps=3)
    of_first.restore(first)
    sent = iter(first.tensors().values())

    def take_from_first(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(next(sent))

    of_other.restore(other, take_from_first)
    assert (other.step, other.numbers()) == (2, first.numbers())
    for state in (first, other):
        _train(state, steps=2)
    assert _same(first, other)
