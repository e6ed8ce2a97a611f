"""The optimizers that `optimizer.name` chooses from; only weight matrices decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pipeline.training.config import OptimizerConfig
from pipeline.training.muon import Muon

Groups = list[dict[str, Any]]
"""Parameters with settings of their own, as torch's optimizers take them."""


def _adamw(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return AdamW: Adam with decoupled weight decay (arXiv 1711.05101)."""
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def _sgd(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return stochastic gradient descent with Nesterov momentum."""
    return torch.optim.SGD(
        groups,
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
    )


def _muon(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return Muon for the weight matrices of all layers but the last, AdamW for the rest."""
    decayed, free = groups
    *hidden, classifier = decayed["params"]
    return Muon(
        [{"params": hidden, "matrices": True}, {"params": [classifier]}, free],
        lr=config.learning_rate,
        momentum=config.momentum,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


OPTIMIZERS: dict[str, Callable[[Groups, OptimizerConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "muon": _muon,
    "sgd": _sgd,
}
"""The function that builds each optimizer, by the names that `OptimizerConfig.name` accepts."""


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the config names, with weight decay on weight matrices only."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if is_weight_matrix(name, parameter) else free).append(parameter)
    groups: Groups = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    return OPTIMIZERS[config.name](groups, config)


def is_weight_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a weight matrix or a kernel, by its shape and name.

    Biases, norms and layer scales have one dimension; tokens, registers, position embeddings and
    rotary frequencies have more dimensions but other names.
    """
    own = name.rpartition(".")[2]
    return parameter.ndim > 1 and (own.endswith("weight") or own.startswith("kernel"))
