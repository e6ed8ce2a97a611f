"""A checkpoint gives back the whole state of a training, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from pipeline.training.config import OptimizerConfig
from pipeline.training.ema import MovingAverage
from pipeline.training.optimizer import build_optimizer

PROGRESS: dict[str, Any] = {
    "step": 7,
    "elapsed": 0.1 + 0.2,
    "plan": [[0, 0.0], [3, 1 / 3], [9, 1.0]],
    "history": [{"epoch": 1.5, "validation_loss": 2 / 3}],
    "best": None,
}


class _State:
    """A small model in training, with its average and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        self.average = MovingAverage(self.model, 0.9)
        self.optimizer = build_optimizer(OptimizerConfig(), self.model)
        self.step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            torch.manual_seed(100 + self.step)
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.model(torch.randn(8, 5)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            self.optimizer.step()
            self.step += 1
            self.average.update(self.model, self.step)

    def save(self, file: Path, progress: dict[str, Any]) -> None:
        save_checkpoint(file, self.model, self.average.model, self.optimizer, progress)

    def load(self, file: Path) -> dict[str, Any]:
        return load_checkpoint(file, self.model, self.average.model, self.optimizer)

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        found |= {f"average.{k}": v for k, v in self.average.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{k}": v for k, v in state.items()}
        return {name: tensor.clone() for name, tensor in found.items()}


def _same(one: _State, other: _State) -> bool:
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Model, average, optimizer and progress are what they were, to the last bit."""
    saved, loaded = _State(seed=1), _State(seed=2)
    saved.train(steps=3)
    saved.save(tmp_path / "last.safetensors", PROGRESS)
    assert not _same(saved, loaded)
    assert loaded.load(tmp_path / "last.safetensors") == PROGRESS
    assert _same(saved, loaded)


def test_a_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Steps after a load lead to the same state as the same steps without a stop."""
    whole, stopped, resumed = _State(seed=1), _State(seed=1), _State(seed=2)
    whole.train(steps=6)
    stopped.train(steps=3)
    stopped.save(tmp_path / "last.safetensors", PROGRESS)
    resumed.load(tmp_path / "last.safetensors")
    resumed.step = 3
    resumed.train(steps=3)
    assert _same(whole, resumed)


def test_a_checkpoint_before_the_first_step_works_too(tmp_path: Path) -> None:
    """An optimizer that has no state yet is saved and loaded."""
    saved, loaded = _State(seed=1), _State(seed=2)
    saved.save(tmp_path / "last.safetensors", PROGRESS)
    loaded.load(tmp_path / "last.safetensors")
    assert _same(saved, loaded)


def test_a_failed_write_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """When writing fails, the old file is whole and no temporary file is left."""
    state, file = _State(seed=1), tmp_path / "last.safetensors"
    state.train(steps=1)
    state.save(file, PROGRESS)
    before = file.read_bytes()
    state.train(steps=1)
    with pytest.raises(TypeError):
        state.save(file, {"step": object()})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
