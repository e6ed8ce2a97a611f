"""AdamW with weight decay on the weight matrices alone."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.training.config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer; biases, norms, tokens and position embeddings do not decay."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and name.endswith("weight")  # noqa: PLR2004 - a matrix
        (decayed if matrix else free).append(parameter)
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": free, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
