"""The optimizers that `optimizer.name` chooses from; only weight matrices decay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.muon import Muon, has_fused_kernels

_BLOCK = re.compile(r"(?P<stack>(?:.*?\.)?(?:blocks|layers))\.(?:\w+_)?(?P<index>\d+)\.")

Groups = list[dict[str, Any]]
"""Parameters with settings of their own, as torch's optimizers take them."""


def _parameters(groups: Groups) -> Iterator[nn.Parameter]:
    return (parameter for group in groups for parameter in group["params"])


def _adamw(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return AdamW: Adam with decoupled weight decay (arXiv 1711.05101)."""
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=has_fused_kernels(_parameters(groups)),
    )


def _sgd(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return stochastic gradient descent with Nesterov momentum."""
    return torch.optim.SGD(
        groups,
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=has_fused_kernels(_parameters(groups)),
    )


def _muon(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return Muon for the weight matrices of all layers but the last, AdamW for the rest."""
    decayed = [group for group in groups if group.get("weight_decay") != 0.0]
    free = [group for group in groups if group.get("weight_decay") == 0.0]
    *hidden, last = decayed
    *inner, classifier = last["params"]
    hidden.append({**last, "params": inner})
    matrices = [{**group, "matrices": True} for group in hidden if group["params"]]
    return Muon(
        [*matrices, {**last, "params": [classifier]}, *free],
        lr=config.learning_rate,
        momentum=config.momentum,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def _schedule_free(groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW (arXiv 2405.15682), in training mode."""
    from schedulefree import AdamWScheduleFree

    optimizer: Any = AdamWScheduleFree(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    optimizer.train()
    in_training_mode: torch.optim.Optimizer = optimizer
    return in_training_mode


OPTIMIZERS: dict[str, Callable[[Groups, OptimizerConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "muon": _muon,
    "schedule_free": _schedule_free,
    "sgd": _sgd,
}
"""The function that builds each optimizer, by the names that `OptimizerConfig.name` accepts."""


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the config names, with weight decay on weight matrices only.

    Each group has the key `rate_factor`, by which the learning rate is multiplied.

    Raises:
        ConfigError: if there is a layer decay, but the model has no numbered blocks.
    """
    factors = rate_factors(config.layer_decay, model)
    decayed: dict[float, list[nn.Parameter]] = {}
    free: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups_of_kind = decayed if is_weight_matrix(name, parameter) else free
        groups_of_kind.setdefault(factors[name], []).append(parameter)
    groups: Groups = [
        {"params": parameters, "rate_factor": factor} for factor, parameters in decayed.items()
    ]
    groups += [
        {"params": parameters, "rate_factor": factor, "weight_decay": 0.0}
        for factor, parameters in free.items()
    ]
    return OPTIMIZERS[config.name](groups, config)


def averages_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer averages the weights, so that no moving average is needed."""
    return "train_mode" in optimizer.defaults


def rate_factors(layer_decay: float, model: nn.Module) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter, by name.

    With L blocks, everything before the first block (embedding, tokens, positions) has the factor
    d^(L+1), block i of 0 to L-1 the factor d^(L-i), and everything after the last block 1.
    A block is a numbered entry of a list of modules with the name `blocks` or `layers`, of the list
    with the most parameters if there are several.

    Raises:
        ConfigError: if d is below 1 and there are no blocks.
    """
    names = [name for name, _ in model.named_parameters()]
    if layer_decay == 1.0:
        return dict.fromkeys(names, 1.0)
    matches = [_BLOCK.match(name) for name in names]
    stacks = [found["stack"] for found in matches if found]
    if not stacks:
        raise ConfigError(
            f"optimizer.layer_decay is {layer_decay:g}, but the model has no numbered blocks. Set "
            "it to 1, or choose a Vision Transformer."
        )
    [(stack, _)] = Counter(stacks).most_common(1)
    of_stack = [found if found and found["stack"] == stack else None for found in matches]
    depth = 1 + max(int(found["index"]) for found in of_stack if found)
    last = max(index for index, found in enumerate(of_stack) if found)
    factors = {}
    for position, (name, found) in enumerate(zip(names, of_stack, strict=True)):
        after = depth + 1 if position > last else 0
        layer = int(found["index"]) + 1 if found else after
        factors[name] = layer_decay ** (depth + 1 - layer)
    return factors


def is_weight_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a weight matrix or a kernel, by its shape and name.

    Biases, norms and layer scales have one dimension; tokens, registers, position embeddings and
    rotary frequencies have more dimensions but other names.
    """
    own = name.rpartition(".")[2]
    return parameter.ndim > 1 and (own.endswith("weight") or own.startswith("kernel"))
