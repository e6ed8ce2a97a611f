"""The optimizers that `optimizer.name` chooses from, and the loss scale of float16.

Muon (Jordan 2024; scaled as in arXiv 2502.16982, section 2.2) replaces the momentum of a matrix by
the nearest matrix with orthogonal rows or columns, so that every direction is learned at the same
rate. A convolution counts as the matrix of its flattened kernels.

`torch.optim.Muon` takes two-dimensional parameters only, one after the other, and computes in
bfloat16, which is slow and less exact on processors without bfloat16 arithmetic. Here matrices of
one shape are computed together, in bfloat16 on processors that have it, else in float32.

Shapes: S matrices of one shape, M rows, N columns of a matrix.

In float16, small gradients would be rounded to zero, so the loss is multiplied by a large factor
first. If a gradient overflows, the update is left out and the factor halved; after many updates
without overflow it is doubled, as in `torch.amp.GradScaler`. That class expects an update after
every gradient, but one can be computed again: after a divergence, in smaller micro-batches, or to
try a compiled model.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import OptimizerConfig

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: the steepest at 0 that keeps singular values near 1."""
_ITERATIONS = 5
_EPSILON = 1e-7
_RMS_OF_ADAMW = 0.2
"""Typical root mean square of an AdamW update; with it, both take the same learning rates."""


@torch.no_grad()
def orthogonalize(matrices_SMN: torch.Tensor) -> torch.Tensor:
    """Return nearly U V' for each matrix U S V': its singular values become 0.7 to 1.2.

    Five Newton-Schulz iterations, matrix products only, in the type of the matrices.
    """
    a, b, c = _COEFFICIENTS
    _, rows, columns = matrices_SMN.shape
    X = matrices_SMN.mT if rows > columns else matrices_SMN
    X = X / torch.linalg.matrix_norm(X, keepdim=True).clamp(min=_EPSILON)
    for _ in range(_ITERATIONS):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.mT if rows > columns else X


@functools.cache
def _type_of_products(device: torch.device) -> torch.dtype:
    """Return the fastest type in which the iterations of Muon still converge."""
    multiplies_bfloat16 = (
        torch.cuda.is_bf16_supported(including_emulation=False)
        if device.type == "cuda"
        else device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001 - no public name
    )
    return torch.bfloat16 if multiplies_bfloat16 else torch.float32


def has_fused_kernels(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether to update all parameters in one pass: three times faster on a CPU."""
    return {parameter.device.type for parameter in parameters} <= {"cpu", "cuda"}


class Muon(torch.optim.Optimizer):
    """Muon for the groups with `matrices=True`, AdamW for the others.

    Args:
        groups: parameter groups as torch takes them; each may set `lr`, `weight_decay`, `matrices`.
        lr: learning rate, on AdamW's scale in both kinds of groups.
        momentum: the factor of Nesterov's momentum, for the matrices.
        betas: AdamW's decay rates of the means of the gradient and of its square.
        weight_decay: weight decay, decoupled, in both kinds of groups.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "betas": betas,
            "weight_decay": weight_decay,
            "matrices": False,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            # As torch's optimizers name it: with it, a loaded state's step is put where the kernel
            # needs it, on the device of the parameters.
            group["fused"] = has_fused_kernels(group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as most of torch's own
        """Update every parameter that has a gradient."""
        if closure is not None:
            raise NotImplementedError("Muon takes no closure")
        for group in self.param_groups:
            if group["matrices"]:
                self._step_matrices(group)
            else:
                self._step_adamw(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not trained:
            return
        for parameter in trained:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in trained]
        means = [self.state[parameter]["momentum"] for parameter in trained]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, means, momentum)  # noqa: SLF001 - as its others
        torch._foreach_mul_(trained, 1 - lr * group["weight_decay"])
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, each in enumerate(ahead):
            alike[each.flatten(1).shape].append(index)
        for shape, indices in alike.items():
            matrices_SMN = torch.stack([ahead[index].flatten(1) for index in indices])
            updates_SMN = orthogonalize(matrices_SMN.to(_type_of_products(matrices_SMN.device)))
            scale = _RMS_OF_ADAMW * math.sqrt(max(shape))
            for index, update_MN in zip(indices, updates_SMN, strict=True):
                parameter = trained[index]
                parameter.add_(update_MN.reshape(parameter.shape), alpha=-lr * scale)

    def _step_adamw(self, group: dict[str, Any]) -> None:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in trained:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in trained]
        beta1, beta2 = group["betas"]
        adamw(
            trained,
            [parameter.grad for parameter in trained],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )


_FIRST, _SMALLEST = 2.0**16, 1.0
_CHANGE = 2.0
_UPDATES = 2000
"""Number of updates without overflow after which the factor grows."""


class LossScale:
    """The factor of the loss of a training run.

    Args:
        precision: the run's precision; without float16, the factor is 1 and nothing is done.
    """

    def __init__(self, precision: str = "float32") -> None:
        self._is_on = precision == "float16"
        self.factor = _FIRST if self._is_on else 1.0
        self._updates = 0
        self._overflows: torch.Tensor | None = None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the factor."""
        return loss * self.factor if self._is_on else loss

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients of parameters by the factor."""
        if self._is_on:
            gradients = [each.grad for each in parameters if each.grad is not None]
            torch._foreach_mul_(gradients, 1 / self.factor)

    def tolerated(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the norm of the gradients, or 0 if they overflow and a smaller factor may help."""
        if not self._is_on:
            return norm
        self._overflows = ~norm.isfinite()
        if self.factor <= _SMALLEST:
            return norm
        return torch.where(self._overflows, torch.zeros_like(norm), norm)

    def admits_update(self) -> bool:
        """Return whether no gradient overflows, and adapt the factor for the next step."""
        if self._overflows is not None and bool(self._overflows):
            self.factor, self._updates = max(_SMALLEST, self.factor / _CHANGE), 0
            return False
        self._updates += 1
        if self._is_on and self._updates == _UPDATES:
            self.factor, self._updates = self.factor * _CHANGE, 0
        return True

    def numbers(self) -> dict[str, float]:
        """Return the state."""
        return {"factor": self.factor, "updates": self._updates}

    def restore(self, numbers: dict[str, float]) -> None:
        """Restore a state that `numbers` has returned."""
        self.factor, self._updates = numbers["factor"], int(numbers["updates"])
        self._overflows = None


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
