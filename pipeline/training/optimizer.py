"""AdamW with weight decay on the weight matrices alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipeline.training.config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer; biases, norms, tokens and position embeddings do not decay."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and name.endswith("weight")  # noqa: PLR2004 - a matrix
        (decayed if matrix else free).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
