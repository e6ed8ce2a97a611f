"""The state of a training in one safetensors file, from which it resumes bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.errors import DamagedFileError
from pipeline.sealed_files import read_tensors, write_tensors

Progress = dict[str, Any]
"""Step, best figures, history: everything about a training that is not a tensor."""


def save_checkpoint(
    file: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Write the whole state with its digest, under a temporary name, and rename it."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    write_tensors(file, tensors, {"progress": json.dumps(progress)})


def load_checkpoint(
    file: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    check: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Put a saved state back into its parts, and return the rest of it.

    Args:
        file: with the state.
        model: gets its weights.
        average: gets the averaged weights.
        optimizer: gets its state.
        check: sees the rest before anything is put back, and may raise.

    Raises:
        DamagedFileError: if the file is not what was written, or is not of this model; the parts
            are then as they were.
    """
    tensors, metadata = read_tensors(file)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _below(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = tensor
    weights, averages = _below(tensors, "model."), _below(tensors, "average.")
    fits = _fit(weights, model) and _fit(averages, average) and _fit_optimizer(states, optimizer)
    if not fits or "progress" not in metadata:
        raise DamagedFileError(
            f"{file} is not a checkpoint of this model. Delete it, or train with the version of "
            "Patchline that wrote it."
        )
    progress: Progress = json.loads(metadata["progress"])
    check(progress)
    model.load_state_dict(weights)
    average.load_state_dict(averages)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    return progress


def _fit(tensors: dict[str, torch.Tensor], module: nn.Module) -> bool:
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    return {name: tensor.shape for name, tensor in tensors.items()} == shapes


def _fit_optimizer(
    states: dict[int, dict[str, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> bool:
    """Return whether every state belongs to a parameter of its shape; counters have none."""
    shapes = [each.shape for group in optimizer.param_groups for each in group["params"]]
    return all(
        index < len(shapes) and all(t.ndim == 0 or t.shape == shapes[index] for t in state.values())
        for index, state in states.items()
    )


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
