"""Muon for weight matrices, AdamW for every other parameter.

Muon (Jordan 2024; scaled as in arXiv 2502.16982, section 2.2) replaces the momentum of a matrix by
the nearest matrix with orthogonal rows or columns, so that every direction is learned at the same
rate. A convolution counts as the matrix of its flattened kernels.

`torch.optim.Muon` takes two-dimensional parameters only and computes in bfloat16, which is slow and
less exact on processors without bfloat16 arithmetic; here the computation is float32.

Shapes: M rows, N columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adamw import adamw

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: the steepest at 0 that keeps singular values near 1."""
_ITERATIONS = 5
_EPSILON = 1e-7
_RMS_OF_ADAMW = 0.2
"""Typical root mean square of an AdamW update; with it, both take the same learning rates."""


@torch.no_grad()
def orthogonalised(matrix_MN: torch.Tensor) -> torch.Tensor:
    """Return nearly U V' for a matrix U S V': its singular values become 0.7 to 1.2.

    Five Newton-Schulz iterations, float32, matrix products only.
    """
    a, b, c = _COEFFICIENTS
    rows, columns = matrix_MN.shape
    X = matrix_MN.float()
    X = X.T if rows > columns else X
    X = X / X.norm().clamp(min=_EPSILON)
    for _ in range(_ITERATIONS):
        gram = X @ X.T
        X = torch.addmm(X, torch.addmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.T if rows > columns else X


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
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            mean = state["momentum"].lerp_(parameter.grad, 1 - momentum)
            ahead_MN = parameter.grad.lerp(mean, momentum).flatten(1)
            scale = _RMS_OF_ADAMW * math.sqrt(max(ahead_MN.shape))
            update = orthogonalised(ahead_MN).reshape(parameter.shape)
            parameter.mul_(1 - lr * group["weight_decay"])
            parameter.add_(update, alpha=-lr * scale)

    def _step_adamw(self, group: dict[str, Any]) -> None:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in trained:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
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
            fused=all(parameter.is_cpu for parameter in trained),
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )
