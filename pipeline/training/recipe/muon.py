"""Muon for weight matrices, AdamW for every other parameter.

Muon (Jordan 2024; scaled as in arXiv 2502.16982, section 2.2) replaces the momentum of a matrix by
the nearest matrix with orthogonal rows or columns, so that every direction is learned at the same
rate. A convolution counts as the matrix of its flattened kernels.

`torch.optim.Muon` takes two-dimensional parameters only, one after the other, and computes in
bfloat16, which is slow and less exact on processors without bfloat16 arithmetic. Here matrices of
one shape are computed together, in float32 on a CPU and in bfloat16 on a GPU that has it.

Shapes: S matrices of one shape, M rows, N columns of a matrix.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: the steepest at 0 that keeps singular values near 1."""
_ITERATIONS = 5
_EPSILON = 1e-7
_RMS_OF_ADAMW = 0.2
"""Typical root mean square of an AdamW update; with it, both take the same learning rates."""


@torch.no_grad()
def orthogonalised(matrices_SMN: torch.Tensor) -> torch.Tensor:
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
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def has_fused_kernels(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether to update all parameters in one pass: three times faster on a CPU."""
    return {parameter.device.type for parameter in parameters} <= {"cpu", "cuda"}


class Muon(torch.optim.Optimizer):
    """Muon for the groups with `matrices=True`, AdamW for the others.

    Args:
        groups: parameter groups as torch takes them; each may set `lr`, `weight_decay`, `matrices`.
        lr: learning rate, on AdamW's scale in both kinds of groups.
        momentum: of the matrices' gradients, Nesterov's form.
        betas: of AdamW.
        weight_decay: decoupled, in both kinds of groups.
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
            updates_SMN = orthogonalised(matrices_SMN.to(_type_of_products(matrices_SMN.device)))
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
