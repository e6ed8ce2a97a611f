"""Multinomial logistic regression with an L2 penalty, solved to convergence with L-BFGS.

The objective is that of scikit-learn's `LogisticRegression`: C times the sum of the weighted losses
plus half the squared norm of the weights; the bias is not penalised. With two classes scikit-learn
penalises the difference of the two weight vectors, which is twice as much, and so does this.

The features are standardised and rotated onto their principal axes. The penalty is the same there,
the Hessian is nearly diagonal, and with fewer images than features there are fewer unknowns. Each
unknown is scaled by its curvature, so tens of iterations suffice also with a weak penalty.

Shapes: N images, B of them, D features, R principal axes, K classes, U unknowns of a class
(R weights and the bias).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

_EXACT_NUMBERS = 2**23
"""Arrays up to this size are computed in float64, larger ones in float32."""
_CONSTANT = 1e-6
"""A feature that varies by less, relative to its mean, is rounding noise."""
_SMALLEST_AXIS = 1e-12
"""Variance along an axis, relative to the largest, below which there is nothing to fit."""
_LOGITS_AT_ONCE = 2**22
_FLATTEST = 1e-6
"""Curvature along the bias that is assumed at least."""
_SMALL_FIT = 2**24
"""Multiplications of a pass up to which threads would mostly wait for each other."""
_MOST_STEPS = 300
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-6}
"""Largest entry of the scaled gradient at which the fit has converged."""


class Solution(NamedTuple):
    """Weights for rotated features (K, R), and the bias (K)."""

    weight_KR: torch.Tensor
    bias_K: torch.Tensor


@dataclass(frozen=True)
class Problem:
    """The training images, prepared once for fits with several strengths of the penalty.

    Attributes:
        features_NR: standardised and rotated.
        labels_N: class indices.
        weights_N: weight of each image's loss; their mean need not be one.
        num_classes: K.
        mean_D: of the raw features.
        axes_DR: maps raw features, minus their mean, to rotated ones.
    """

    features_NR: torch.Tensor
    labels_N: torch.Tensor
    weights_N: torch.Tensor
    num_classes: int
    mean_D: torch.Tensor
    axes_DR: torch.Tensor

    @classmethod
    def of(
        cls,
        features_ND: torch.Tensor,
        labels_N: torch.Tensor,
        num_classes: int,
        class_weights_K: torch.Tensor | None = None,
    ) -> Problem:
        """Standardise and rotate raw features, which are not changed."""
        exact = features_ND.numel() <= _EXACT_NUMBERS
        centred_ND = features_ND.to(torch.float64 if exact else torch.float32, copy=True)
        mean_D = centred_ND.mean(0)
        centred_ND -= mean_D
        deviation_D = centred_ND.square().mean(0).sqrt()
        varies = deviation_D > _CONSTANT * mean_D.abs()
        scale_D = torch.where(varies, 1 / deviation_D, 0.0)
        centred_ND *= scale_D
        axes_DR = _principal_axes(centred_ND)
        features_NR = centred_ND @ axes_DR
        weights_N = torch.ones(len(labels_N), dtype=mean_D.dtype)
        if class_weights_K is not None:
            weights_N = class_weights_K.to(mean_D.dtype)[labels_N]
        rotation_DR = scale_D[:, None] * axes_DR
        return cls(features_NR, labels_N, weights_N, num_classes, mean_D, rotation_DR)

    def start(self) -> Solution:
        """Return weights of zero, with a bias for the classes' shares of the loss."""
        counts_K = torch.zeros(self.num_classes, dtype=self.weights_N.dtype)
        counts_K.index_add_(0, self.labels_N, self.weights_N)
        bias_K = (counts_K / counts_K.sum()).clamp(min=1e-3 / self.num_classes).log()
        zeros_KR = self.features_NR.new_zeros(self.num_classes, self.features_NR.shape[1])
        return Solution(zeros_KR, bias_K - bias_K.mean())

    def solve(self, regularization: float, start: Solution) -> Solution:
        """Return the minimum for a C as in scikit-learn, searched from a start."""
        total = float(self.weights_N.sum())
        penalty = (2 if self.num_classes == 2 else 1) / (regularization * total)  # noqa: PLR2004
        scale_U = self._scale(penalty, start)
        unknowns_KU = (_joined(start) / scale_U).requires_grad_()

        def unscaled() -> Solution:
            values_KU = unknowns_KU.detach()
            return Solution(values_KU[:, :-1] * scale_U[:-1], values_KU[:, -1] * scale_U[-1])

        def objective() -> float:
            here = unscaled()
            loss, slope = self._loss_and_slope(here)
            slope = slope._replace(weight_KR=slope.weight_KR + penalty * here.weight_KR)
            unknowns_KU.grad = _joined(slope) * scale_U
            return loss + penalty / 2 * float(here.weight_KR.double().square().sum())

        tolerance = _TOLERANCE[unknowns_KU.dtype]
        solver = torch.optim.LBFGS(
            [unknowns_KU],
            max_iter=_MOST_STEPS,
            tolerance_grad=tolerance,
            tolerance_change=tolerance**2,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        solver.step(objective)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return unscaled()

    def loss(self, solution: Solution) -> float:
        """Return the weighted mean loss of the training images, without the penalty."""
        return self._loss_and_slope(solution)[0]

    def for_raw_features(self, solution: Solution) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight (K, D) and bias (K) that take raw features."""
        weight_KD = solution.weight_KR.double() @ self.axes_DR.double().T
        return weight_KD, solution.bias_K.double() - weight_KD @ self.mean_D.double()

    def _scale(self, penalty: float, start: Solution) -> torch.Tensor:
        """Return one over the root of the Hessian's diagonal, estimated at the start."""
        share_N = self.weights_N / self.weights_N.sum()
        curvature_R = torch.full_like(self.features_NR[0], penalty)
        curvature = torch.zeros_like(curvature_R[:1])
        for part in self._parts():
            probabilities_BK = self._logits(start, part).softmax(1)
            curvature_B = (probabilities_BK * (1 - probabilities_BK)).mean(1) * share_N[part]
            curvature_R += curvature_B @ self.features_NR[part].square()
            curvature += curvature_B.sum()
        return torch.cat([curvature_R, curvature.clamp(min=_FLATTEST)]).rsqrt()

    def _loss_and_slope(self, solution: Solution) -> tuple[float, Solution]:
        """Return the weighted mean loss and its gradient."""
        share_N = self.weights_N / self.weights_N.sum()
        weight_KR, bias_K = (torch.zeros_like(each) for each in solution)
        loss = 0.0
        for part in self._parts():
            log_BK = functional.log_softmax(self._logits(solution, part), 1)
            labels_B1 = self.labels_N[part, None]
            share_B = share_N[part]
            loss -= float((log_BK.gather(1, labels_B1)[:, 0] * share_B).double().sum())
            slope_BK = log_BK.exp_()
            slope_BK.scatter_add_(1, labels_B1, -torch.ones_like(slope_BK[:, :1]))
            slope_BK *= share_B[:, None]
            weight_KR += slope_BK.T @ self.features_NR[part]
            bias_K += slope_BK.sum(0)
        return loss, Solution(weight_KR, bias_K)

    def _logits(self, solution: Solution, part: slice) -> torch.Tensor:
        logits_BK: torch.Tensor = torch.addmm(
            solution.bias_K, self.features_NR[part], solution.weight_KR.T
        )
        return logits_BK

    def _parts(self) -> list[slice]:
        size = max(1, _LOGITS_AT_ONCE // self.num_classes)
        return [slice(at, at + size) for at in range(0, len(self.labels_N), size)]


@contextmanager
def suitable_threads(multiplications: int) -> Iterator[None]:
    """Run a block with one thread if the fit is small; restore the number of threads afterwards."""
    before = torch.get_num_threads()
    if multiplications <= _SMALL_FIT:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _joined(solution: Solution) -> torch.Tensor:
    """Return weights and bias in one tensor (K, U)."""
    return torch.cat([solution.weight_KR, solution.bias_K[:, None]], 1)


def _principal_axes(features_ND: torch.Tensor) -> torch.Tensor:
    """Return orthonormal axes (D, R) along which the features vary."""
    images, features = features_ND.shape
    if images < features:
        _, deviations_R, axes_RD = torch.linalg.svd(features_ND, full_matrices=False)
        variances_R, axes_DR = deviations_R.square(), axes_RD.T
    else:
        variances_R, axes_DR = torch.linalg.eigh(features_ND.T @ features_ND)
    varies_R = variances_R >= _SMALLEST_AXIS * variances_R.max()
    kept_DR: torch.Tensor = axes_DR[:, varies_R].contiguous()
    return kept_DR
