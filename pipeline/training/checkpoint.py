"""The state of a training in one safetensors file, from which it goes on bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from pipeline.atomic_files import replacing

Progress = dict[str, Any]
"""Step, best figures, history: everything about a training that is not a tensor."""


def save_checkpoint(
    file: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Write the whole state under a temporary name and rename it."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    # safetensors refuses tensors that share memory, so tied weights are written twice
    on_cpu = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with replacing(file) as temporary:
        save_file(on_cpu, temporary, metadata={"progress": json.dumps(progress)})


def load_checkpoint(
    file: Path, model: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer
) -> Progress:
    """Put a saved state back into its parts, and return the rest of it."""
    with safe_open(file, framework="pt") as opened:
        progress: Progress = json.loads(opened.metadata()["progress"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no iterator
    model.load_state_dict(_below(tensors, "model."))
    average.load_state_dict(_below(tensors, "average."))
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _below(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    return progress


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
