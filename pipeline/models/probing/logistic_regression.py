"""Logistic regression with an L2 penalty, solved to convergence with L-BFGS.

It is multinomial for images with one class (`Problem`), and one-vs-rest for images with sets of
labels (`OneVsRestProblem`): each label is then fitted by itself, as by scikit-learn's
`OneVsRestClassifier`.

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

from abc import ABC, abstractmethod
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


class Rotated(NamedTuple):
    """Features of the training images, prepared once for fits with several penalties."""

    features_NR: torch.Tensor
    """The features, standardised and rotated."""
    mean_D: torch.Tensor
    """The mean of the raw features."""
    axes_DR: torch.Tensor
    """Maps raw features, minus their mean, to rotated ones."""

    @classmethod
    def of(cls, features_ND: torch.Tensor) -> Rotated:
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
        return cls(centred_ND @ axes_DR, mean_D, scale_D[:, None] * axes_DR)


@dataclass(frozen=True)
class LogisticProblem(ABC):
    """What is minimised, for any strength of the penalty.

    Attributes:
        rotated: the features.
        num_classes: K, the number of classes or labels.
    """

    rotated: Rotated
    num_classes: int

    @property
    def features_NR(self) -> torch.Tensor:  # noqa: N802 - the shape suffix
        """The features of the training images."""
        return self.rotated.features_NR

    @abstractmethod
    def start(self) -> Solution:
        """Return weights of zero, with a bias for the classes' shares of the loss."""

    @abstractmethod
    def _penalty(self, regularization: float) -> float:
        """Return the factor of half the squared norm of the weights, beside the mean loss."""

    @abstractmethod
    def _scale(self, penalty: float, start: Solution) -> torch.Tensor:
        """Return one over the root of the Hessian's diagonal at the start: (U), or (K, U)."""

    @abstractmethod
    def _loss_and_slope(self, solution: Solution) -> tuple[float, Solution]:
        """Return the weighted mean loss and its gradient."""

    def solve(self, regularization: float, start: Solution) -> Solution:
        """Return the minimum for a C as in scikit-learn, searched from a start."""
        penalty = self._penalty(regularization)
        scale = self._scale(penalty, start)
        unknowns_KU = (_join(start) / scale).requires_grad_()

        def unscaled() -> Solution:
            values_KU = unknowns_KU.detach() * scale
            return Solution(values_KU[:, :-1], values_KU[:, -1])

        def objective() -> float:
            here = unscaled()
            loss, slope = self._loss_and_slope(here)
            slope = slope._replace(weight_KR=slope.weight_KR + penalty * here.weight_KR)
            unknowns_KU.grad = _join(slope) * scale
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
        rotated = self.rotated
        weight_KD = solution.weight_KR.double() @ rotated.axes_DR.double().T
        return weight_KD, solution.bias_K.double() - weight_KD @ rotated.mean_D.double()

    def _logits(self, solution: Solution, part: slice) -> torch.Tensor:
        logits_BK: torch.Tensor = torch.addmm(
            solution.bias_K, self.features_NR[part], solution.weight_KR.T
        )
        return logits_BK

    def _parts(self) -> list[slice]:
        size = max(1, _LOGITS_AT_ONCE // self.num_classes)
        return [slice(at, at + size) for at in range(0, len(self.features_NR), size)]


@dataclass(frozen=True)
class Problem(LogisticProblem):
    """Images with one class: multinomial logistic regression.

    Attributes:
        labels_N: the class index of each image.
        weights_N: weight of each image's loss; their mean need not be one.
    """

    labels_N: torch.Tensor
    weights_N: torch.Tensor

    @classmethod
    def of(
        cls,
        features_ND: torch.Tensor,
        labels_N: torch.Tensor,
        num_classes: int,
        class_weights_K: torch.Tensor | None = None,
    ) -> Problem:
        """Return the problem of raw features, which are not changed."""
        rotated = Rotated.of(features_ND)
        weights_N = torch.ones(len(labels_N), dtype=rotated.mean_D.dtype)
        if class_weights_K is not None:
            weights_N = class_weights_K.to(rotated.mean_D.dtype)[labels_N]
        return cls(rotated, num_classes, labels_N, weights_N)

    def start(self) -> Solution:
        """Return weights of zero, with a bias for the classes' shares of the loss."""
        counts_K = torch.zeros(self.num_classes, dtype=self.weights_N.dtype)
        counts_K.index_add_(0, self.labels_N, self.weights_N)
        bias_K = (counts_K / counts_K.sum()).clamp(min=1e-3 / self.num_classes).log()
        zeros_KR = self.features_NR.new_zeros(self.num_classes, self.features_NR.shape[1])
        return Solution(zeros_KR, bias_K - bias_K.mean())

    def _penalty(self, regularization: float) -> float:
        total = float(self.weights_N.sum())
        return (2 if self.num_classes == 2 else 1) / (regularization * total)  # noqa: PLR2004

    def _scale(self, penalty: float, start: Solution) -> torch.Tensor:
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


@dataclass(frozen=True)
class OneVsRestProblem(LogisticProblem):
    """Images with sets of labels: a logistic regression for each label, all solved together.

    A label that all images have, or none, is not fitted: its logit is that of its share.

    Attributes:
        sets_NK: 1 where an image has a label, otherwise 0.
        positive_weights_K: weight of the loss where a label is present.
    """

    sets_NK: torch.Tensor
    positive_weights_K: torch.Tensor

    @classmethod
    def of(
        cls,
        features_ND: torch.Tensor,
        sets_NK: torch.Tensor,
        positive_weights_K: torch.Tensor | None = None,
    ) -> OneVsRestProblem:
        """Return the problem of raw features, which are not changed."""
        rotated, labels = Rotated.of(features_ND), sets_NK.shape[1]
        dtype = rotated.mean_D.dtype
        weights_K = torch.ones(labels) if positive_weights_K is None else positive_weights_K
        return cls(rotated, labels, sets_NK.to(dtype), weights_K.to(dtype))

    def start(self) -> Solution:
        """Return weights of zero, with the bias of each label's share of the loss."""
        positives_K = self.sets_NK.sum(0)
        negatives_K = len(self.sets_NK) - positives_K
        half = 0.5  # of an image more on both sides, so that no share is 0 or 1
        odds_K = (positives_K + half) * self.positive_weights_K / (negatives_K + half)
        zeros_KR = self.features_NR.new_zeros(self.num_classes, self.features_NR.shape[1])
        return Solution(zeros_KR, odds_K.log())

    def _penalty(self, regularization: float) -> float:
        return 1 / (regularization * len(self.sets_NK))

    def _scale(self, penalty: float, start: Solution) -> torch.Tensor:
        images = len(self.sets_NK)
        curvature_KR = self.features_NR.new_full(start.weight_KR.shape, penalty)
        curvature_K = torch.zeros_like(start.bias_K)
        for part in self._parts():
            probabilities_BK = self._logits(start, part).sigmoid()
            each_BK = probabilities_BK * (1 - probabilities_BK) * self._weights(part) / images
            curvature_KR += each_BK.T @ self.features_NR[part].square()
            curvature_K += each_BK.sum(0)
        both_KU = torch.cat([curvature_KR, curvature_K.clamp(min=_FLATTEST)[:, None]], 1)
        return both_KU.rsqrt()

    def _loss_and_slope(self, solution: Solution) -> tuple[float, Solution]:
        images, has_both_K = len(self.sets_NK), self._has_both_K()
        weight_KR, bias_K = (torch.zeros_like(each) for each in solution)
        loss = 0.0
        for part in self._parts():
            logits_BK, sets_BK = self._logits(solution, part), self.sets_NK[part]
            share_BK = self._weights(part) / images
            signed_BK = torch.where(sets_BK > 0, -logits_BK, logits_BK)
            loss += float((functional.softplus(signed_BK) * share_BK).double().sum())
            slope_BK = (logits_BK.sigmoid() - sets_BK) * share_BK * has_both_K
            weight_KR += slope_BK.T @ self.features_NR[part]
            bias_K += slope_BK.sum(0)
        return loss, Solution(weight_KR, bias_K)

    def _weights(self, part: slice) -> torch.Tensor:
        """Return the weight of each label of some images (B, K)."""
        sets_BK = self.sets_NK[part]
        return sets_BK * self.positive_weights_K + (1 - sets_BK)

    def _has_both_K(self) -> torch.Tensor:  # noqa: N802 - the shape suffix
        """Return 1 for the labels that some images have and some have not, otherwise 0."""
        positives_K = self.sets_NK.sum(0)
        both_K: torch.Tensor = (positives_K > 0) & (positives_K < len(self.sets_NK))
        return both_K.to(self.sets_NK.dtype)


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


def _join(solution: Solution) -> torch.Tensor:
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
