"""AdamW with weight decay on the weight matrices alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipeline.training.config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer; what is no weight matrix does not decay."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if is_weight_matrix(name, parameter) else free).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def is_weight_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter multiplies features: a matrix or a kernel, called so.

    Biases, norms and layer scales have one dimension; tokens, registers, position embeddings and
    rotary frequencies have more, but another name.
    """
    own = name.rpartition(".")[2]
    return parameter.ndim > 1 and (own.endswith("weight") or own.startswith("kernel"))
