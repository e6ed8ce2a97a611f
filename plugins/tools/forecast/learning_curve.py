"""How the test accuracy grows with the labels: power laws through the errors of nested shares.

The error of a learner with n labels is taken for a (n / N)^-b + c, with a, b >= 0 and 0 <= c <= 1,
where N is the number of all labels and c what no label removes (Hestness et al. 2017, arXiv
1712.00409). For a given b, the least squares of a and c have a closed form (variable projection,
Golub and Pereyra 1973, SIAM Journal on Numerical Analysis 10), so b is searched on a grid, for all
resamples at once.

An extrapolation is uncertain for three reasons, and each resample differs in all of them:

- the test images: drawn with replacement, whole groups of them; all fits share the same ones;
- the training images: the errors get normal noise with the variance between the draws of a share.
  It is pooled over the shares as a variance in proportion to 1 / n, because three draws are too few
  to draw from. Draws of a share r of the same images overlap, which their variance lacks: it is
  divided by 1 - r;
- the curve: half of the resamples are fitted with c, and half without. Nested shares of one data
  set hardly tell which is right, and the truth is mostly between both.

Shapes: F fits, S sizes of shares, N test images, U groups of them, R resamples, B exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import (
    TAIL,
    ImageGroups,
    MetricEstimate,
    with_effective_size,
)

Array = np.ndarray[Any, Any]
RESAMPLES = 1000
FEWEST_SIZES = 3
"""Sizes of shares below which a curve is too short to be continued."""
FARTHEST = 4
"""How many times as many labels as there are a forecast may reach, from an eighth of them on."""
_EXPONENTS = np.geomspace(0.02, 2.0, 200)


@dataclass(frozen=True)
class MeasuredFits:
    """The errors on the same test images of fits on nested shares of the training images."""

    sizes_F: Array
    """Number of training images of each fit."""
    wrong_FN: Array
    """Whether each fit is wrong on each test image."""
    groups: ImageGroups | None = None
    """The groups of the test images; None if these are independent."""

    @property
    def sizes_S(self) -> Array:  # noqa: N802 - the shape suffix
        """The different numbers of training images, rising; the last is all of them."""
        return np.unique(self.sizes_F)

    def of_images(self, rows: Array) -> MeasuredFits:
        """Return the same fits on some of the test images, by their positions."""
        groups = self.groups.among(rows) if self.groups else None
        return MeasuredFits(self.sizes_F, self.wrong_FN[:, rows], groups)

    def accuracy(self, size: int) -> MetricEstimate:
        """Return the mean accuracy of the fits of a size, with the interval of the test images."""
        right_N = 1 - self.wrong_FN[self.sizes_F == size].mean(axis=0)
        images = len(right_N)
        effective = self.groups.effective_size(right_N) if self.groups else images
        return with_effective_size(float(right_N.mean()), n=images, effective_n=effective)

    def resampled_errors(self, generator: np.random.Generator) -> Array:
        """Return the error of each fit (R, F) on test images that are drawn with replacement.

        Units that are alike are drawn together, by their number.
        """
        wrong_FU, images_U = self.wrong_FN.astype(np.float64), np.ones(self.wrong_FN.shape[1])
        if self.groups is not None:
            wrong_FU = np.stack([self.groups.sums(each) for each in wrong_FU])
            images_U = self.groups.sums(images_U)
        alike, counts = np.unique(np.vstack([wrong_FU, images_U]), axis=1, return_counts=True)
        units = counts.sum()
        drawn_R = generator.multinomial(units, counts / units, size=RESAMPLES) @ alike.T
        errors_RF: Array = drawn_R[:, :-1] / drawn_R[:, -1:]
        return errors_RF


class PowerLaws(NamedTuple):
    """Curves slope * ratio^-exponent + offset, where the ratio is that of the labels to all."""

    slope_R: Array
    exponent_R: Array
    offset_R: Array

    def errors(self, ratio: float) -> Array:
        """Return the errors (R) with so many times the labels."""
        errors_R: Array = self.slope_R * ratio**-self.exponent_R + self.offset_R
        return errors_R


def fit_power_laws(
    ratios_S: Array, errors_RS: Array, weights_S: Array, *, has_offset: bool
) -> PowerLaws:
    """Fit a power law to the errors of each resample by weighted least squares.

    Args:
        ratios_S: size of each share, as a part of all.
        errors_RS: the errors, in each resample.
        weights_S: weight of the squared residual of each size.
        has_offset: whether there is an error that no label removes; otherwise it is 0.
    """
    exponents_B = _EXPONENTS if has_offset else np.append(0.0, _EXPONENTS)
    powers_BS = ratios_S ** -exponents_B[:, None]
    ones, powers_B, squares_B = weights_S.sum(), powers_BS @ weights_S, powers_BS**2 @ weights_S
    errors_R1 = (errors_RS @ weights_S)[:, None]
    both_RB = (errors_RS * weights_S) @ powers_BS.T
    slope_RB, offset_RB = both_RB / squares_B, np.zeros_like(both_RB)
    if has_offset:
        free_RB = (ones * both_RB - errors_R1 * powers_B) / (ones * squares_B - powers_B**2)
        rest_RB = (errors_R1 - free_RB * powers_B) / ones
        is_above = rest_RB > 0
        slope_RB = np.where(is_above, np.maximum(free_RB, 0), slope_RB)
        offset_RB = np.where(is_above, np.where(free_RB < 0, errors_R1 / ones, rest_RB), 0)
    loss_RB = slope_RB * (
        slope_RB * squares_B + 2 * offset_RB * powers_B - 2 * both_RB
    ) + offset_RB * (
        offset_RB * ones - 2 * errors_R1
    )  # but for the sum of the squared errors, which is the same for all exponents
    best_R = loss_RB.argmin(axis=1)
    rows_R = np.arange(len(best_R))
    return PowerLaws(slope_RB[rows_R, best_R], exponents_B[best_R], offset_RB[rows_R, best_R])


@dataclass(frozen=True)
class LearningCurve:
    """The curves of all resamples, which say what more labels would bring."""

    laws: PowerLaws
    labels: int
    """Number of all training images."""
    images: int
    """Number of test images."""
    noise_R: Array
    """How much one draw of as many labels as there are differs from the curve."""

    def accuracy(self, labels: float) -> MetricEstimate:
        """Return the accuracy that is expected with so many labels, for one draw of them."""
        ratio = labels / self.labels
        errors_R = self.laws.errors(ratio) + self.noise_R / np.sqrt(ratio)
        return self._estimate(np.clip(1 - errors_R, 0, 1))

    def gain(self, labels: float) -> MetricEstimate:
        """Return by how much the accuracy is expected to grow up to so many labels."""
        return self._estimate(self.laws.errors(1) - self.laws.errors(labels / self.labels))

    def can_tell(self, labels: float) -> bool:
        """Return whether the gain is told: its interval is no wider than twice the gain."""
        gain = self.gain(labels)
        return gain.high - gain.low < 2 * gain.value

    def labels_for(self, gain: float) -> tuple[float, float, float]:
        """Return how many labels besides take the accuracy up by a gain, with the interval.

        Infinite where no number does.
        """
        slope_R, exponent_R, _ = self.laws
        rest_R = 1 - gain / np.maximum(slope_R, gain)
        with np.errstate(divide="ignore", over="ignore"):
            ratio_R = np.where(rest_R > 0, rest_R ** (-1 / exponent_R), np.inf)
        quantiles = np.quantile(ratio_R, (0.5, TAIL, 1 - TAIL), method="nearest")
        value, low, high = (float(self.labels * (ratio - 1)) for ratio in quantiles)
        return value, low, high

    def _estimate(self, values_R: Array) -> MetricEstimate:
        value, low, high = map(float, np.quantile(values_R, (0.5, TAIL, 1 - TAIL)))
        return MetricEstimate(value=value, low=low, high=high, n=self.images)


def fit_learning_curve(fits: MeasuredFits, seed: int) -> LearningCurve:
    """Resample the errors of fits, and fit a power law to each resample.

    Args:
        fits: fits of at least three sizes; those of the largest have all training images.
        seed: the seed of the resamples.
    """
    generator, sizes_S = np.random.default_rng(seed), fits.sizes_S
    member_SF = fits.sizes_F == sizes_S[:, None]
    draws_S, ratios_S = member_SF.sum(axis=1), sizes_S / sizes_S[-1]
    errors_F = fits.wrong_FN.mean(axis=1)
    deviation = np.sqrt(_variance_between_draws(ratios_S, [errors_F[each] for each in member_SF]))
    errors_RS = fits.resampled_errors(generator) @ (member_SF / draws_S[:, None]).T
    deviation_S = deviation / np.sqrt(ratios_S * draws_S)
    errors_RS += deviation_S * generator.standard_normal(errors_RS.shape)
    images = fits.wrong_FN.shape[1]
    level_S = np.clip(member_SF @ errors_F / draws_S, 1 / images, 1 - 1 / images)
    weights_S = 1 / (level_S * (1 - level_S) / images + deviation_S**2)
    half = RESAMPLES // 2
    parts = ((errors_RS[:half], True), (errors_RS[half:], False))
    laws = [fit_power_laws(ratios_S, part, weights_S, has_offset=own) for part, own in parts]
    return LearningCurve(
        laws=PowerLaws(*map(np.concatenate, zip(*laws, strict=True))),
        labels=int(sizes_S[-1]),
        images=images,
        noise_R=deviation * generator.standard_normal(RESAMPLES),
    )


def _variance_between_draws(ratios_S: Array, errors: Sequence[Array]) -> float:
    """Return the variance of the error of one fit on all training images, over draws of them.

    Args:
        ratios_S: size of each share, as a part of all.
        errors: the errors of the draws of each share.
    """
    total, freedom = 0.0, 0
    for ratio, drawn in zip(ratios_S[:-1], errors, strict=False):
        total += float(((drawn - drawn.mean()) ** 2).sum() * ratio / (1 - ratio))
        freedom += len(drawn) - 1
    return total / max(1, freedom)
