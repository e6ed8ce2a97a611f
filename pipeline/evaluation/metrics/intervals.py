"""95% confidence intervals of metrics that are computed from a sample: of images, or of groups.

Groups are images that are not independent of each other: a patient's, a video's, a burst's. With
groups, the groups are the sample, not the images. So a test takes whole groups, and an
interval is that of the number of independent images with the same variance: n over the design
effect (Kish 1965, Survey Sampling). Metrics that are no means have the design effect of their
influences, the mean of which they follow (Woodruff 1971, JASA 66).

Shapes: N images, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
TAIL = 0.025
"""Probability outside of the interval on each side."""
_HALVINGS = 30
_TINY = float(np.finfo(np.float64).tiny)


class MetricEstimate(FrozenModel):
    """A metric's value, its 95% confidence interval, and the number of samples."""

    value: float
    low: float
    high: float
    n: int


def proportion(successes: int, n: int) -> MetricEstimate:
    """Return a proportion with its mid-P interval.

    With no samples the proportion is 0 and the interval is 0 to 1.
    """
    return proportions(np.array([successes]), np.array([n]))[0]


def proportions(
    successes_M: Array, n_M: Array, effective_M: Array | None = None
) -> list[MetricEstimate]:
    """Return M proportions, each with its mid-P interval.

    Args:
        successes_M: how many of the samples are successes.
        n_M: number of samples.
        effective_M: how many independent samples these are worth; by default all.
    """
    values = successes_M / np.maximum(n_M, 1)
    trials_M = n_M if effective_M is None else effective_M
    low, high = mid_p_bounds(successes_M if effective_M is None else values * trials_M, trials_M)
    return [
        MetricEstimate(value=float(value), low=float(start), high=float(end), n=int(n))
        for value, start, end, n in zip(values, low, high, n_M, strict=True)
    ]


def f1_of_jaccard(jaccard: MetricEstimate) -> MetricEstimate:
    """Return F1 = 2 J / (1 + J) with its interval, given the Jaccard index J."""
    value, low, high = (
        2 * each / (1 + each) for each in (jaccard.value, jaccard.low, jaccard.high)
    )
    return MetricEstimate(value=value, low=low, high=high, n=jaccard.n)


def mid_p_bounds(successes_M: Array, trials_M: Array) -> tuple[Array, Array]:
    """Return both ends of the mid-P interval of M proportions.

    Clopper and Pearson's tails with half the probability of the observed count (Lancaster 1961,
    JASA 56; Agresti and Gottard 2007, Computational Statistics & Data Analysis 51). Counts may be
    fractions, as binomial tails are incomplete beta functions. Without trials an interval is
    everything.
    """
    successes = np.clip(np.asarray(successes_M, np.float64), 0, trials_M)
    failures = trials_M - successes
    lows = _mid_p_low(np.concatenate([successes, failures]), np.concatenate([failures, successes]))
    low, high = lows[: len(successes)], 1 - lows[len(successes) :]
    share = successes / np.maximum(trials_M, _TINY)
    counted = np.asarray(trials_M) > 0
    return (
        np.where(counted, np.minimum(low, share), 0.0),
        np.where(counted, np.maximum(high, share), 1.0),
    )


def _mid_p_low(successes: Array, failures: Array) -> Array:
    """Return the shares under which so many successes or more have mid-probability `TAIL`."""
    from scipy.special import betainc, betaincinv

    some, rest = np.maximum(successes, _TINY), np.maximum(failures, _TINY)
    low = betaincinv(some, failures + 1, TAIL)  # Clopper and Pearson's; the next is of one more
    high = np.where(failures > 0, betaincinv(successes + 1, rest, TAIL), 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = np.where(failures > 0, betainc(successes + 1, rest, middle), 0.0)
        too_low = betainc(some, failures + 1, middle) + more < 2 * TAIL
        low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
    return np.where(successes > 0, low, 0.0)


def mean_of_repeats(
    values: Sequence[float], ends: tuple[float, float], samples: int | None = None
) -> MetricEstimate:
    """Return the mean of a metric over repeated measurements, with its t interval.

    Equal values do not make the mean certain: with bounded ends, the interval contains that of a
    proportion of as many samples, or if it would have no width, of as many values.

    For the folds of a cross-validation, the interval is approximate: their training images overlap
    (Bengio and Grandvalet 2004, Journal of Machine Learning Research 5).

    Args:
        values: the measured values; with a single one, the interval is everything between the ends.
        ends: the smallest and the largest possible value; the interval is cut off there.
        samples: number of samples that all values together are computed from.
    """
    from scipy.special import stdtrit

    count, mean = len(values), float(np.mean(values))
    if count == 1:
        return MetricEstimate(value=mean, low=ends[0], high=ends[1], n=count)
    half = float(stdtrit(count - 1, 1 - TAIL) * np.std(values, ddof=1) / np.sqrt(count))
    low, high = max(ends[0], mean - half), min(ends[1], mean + half)
    if np.isfinite(ends).all() and (samples or half == 0):
        least = with_effective_size(mean, n=count, effective_n=samples or count, ends=ends)
        low, high = min(low, least.low), max(high, least.high)
    return MetricEstimate(value=mean, low=low, high=high, n=count)


def with_effective_size(
    value: float,
    *,
    n: int,
    effective_n: float,
    centre: float | None = None,
    ends: tuple[float, float] = (0.0, 1.0),
) -> MetricEstimate:
    """Return a bounded metric with the mid-P interval of a proportion of equal variance.

    The interval for proportions in complex surveys (Korn and Graubard 1998, Survey Methodology 24):
    if the metric has the variance of a proportion among `effective_n` samples, it gets the interval
    of that proportion.

    Args:
        value: the metric; the interval is widened to include it.
        n: number of samples.
        effective_n: one-sample variance of a proportion of this size, divided by the metric's
            variance.
        centre: the centre of the interval, if the metric has a known bias.
        ends: the smallest and the largest possible value.
    """
    least, most = ends
    share = ((value if centre is None else centre) - least) / (most - least)
    low, high = (
        least + (most - least) * float(end[0])
        for end in mid_p_bounds(np.array([share * effective_n]), np.array([effective_n]))
    )
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)


@dataclass(frozen=True)
class ImageGroups:
    """Which images belong together; an image without a group is a group of its own."""

    codes_N: Array
    """Number of each image's group, from 0."""
    count: int
    """Number of groups, G."""

    @classmethod
    def of(cls, groups_N: Sequence[Any] | Array | None) -> ImageGroups | None:
        """Number the groups.

        Args:
            groups_N: a value for each image, equal for those of one group; None if there are none.

        Returns:
            None if no two images are of one group, so that all images are independent.
        """
        if groups_N is None or not len(groups_N):
            return None
        names, codes_N = np.unique(np.asarray(groups_N), return_inverse=True)
        return cls(codes_N, len(names)) if len(names) < len(codes_N) else None

    def among(self, images: Array) -> ImageGroups | None:
        """Return the groups of some of the images, by their positions."""
        return ImageGroups.of(self.codes_N[images])

    def sums(self, values_N: Array) -> Array:
        """Return the sum of the values of each group (G)."""
        return np.bincount(self.codes_N, weights=values_N, minlength=self.count)

    def linearised(self, values_N: Array) -> Array:
        """Return a value of each group (G) whose mean is that of the values (N).

        These vary as the mean of the values does in other samples of groups (Taylor linearisation
        of the ratio of two totals, as groups differ in size: Woodruff 1971, JASA 66). Of groups of
        one image, they are the values themselves.
        """
        mean = values_N.mean()
        linearised: Array = mean + self.sums(values_N - mean) * (self.count / len(values_N))
        return linearised

    def effective_size(self, values_N: Array) -> float:
        """Return how many independent images would make the mean of the values as certain.

        The variance of the mean is that between groups (the ratio estimator; for two classifiers
        Obuchowski 1998, Statistics in Medicine 17). It counts for no less than that of independent
        images. Its degrees of freedom are those of the groups (Korn and Graubard 1998, Survey
        Methodology 24), or as many as the values of few groups make it vary: about the number of
        groups that the errors are in (half of O'Neill's, 2014, The American Statistician 68, as
        the variance of few large values is mostly too small). These count for no more than one
        image for each group of equal size (Kish 1965), which is also all that is known if no value
        differs. A single group has no variance: the size is 0.
        """
        from scipy.special import ndtri, stdtrit

        if self.count == 1:
            return 0.0
        n, mean = len(values_N), float(values_N.mean())

        def few(freedom: float) -> float:
            return float(ndtri(1 - TAIL) / stdtrit(freedom, 1 - TAIL)) ** 2

        most = self.count - 1
        one_each = n**2 / float((np.bincount(self.codes_N) ** 2).sum())
        of_images = float(values_N.var()) / n
        if of_images == 0:
            return one_each * few(most)
        squares_G = self.sums(values_N - mean) ** 2
        total = float(squares_G.sum())
        of_groups = total * self.count / most / n**2
        size = n * of_images / max(of_groups, of_images)
        uneven = float((squares_G**2).sum()) / total**2 - 1 / self.count if total else 0.0
        freedom = min(most, max(1.0, 1 / uneven)) if uneven > 0 else most
        return max(size * few(freedom), min(size, one_each) * few(most))

    def inflation(self, values_N: Array) -> float:
        """Return by how much the groups multiply the squared width of an interval of the mean.

        That is the design effect, and the part of few degrees of freedom; infinite for one group.

        Args:
            values_N: a value of each image, or the influence of each image on a metric.
        """
        size = self.effective_size(values_N)
        return len(values_N) / size if size else float("inf")


def inflation(values_N: Array, groups: ImageGroups | None) -> float:
    """Return by how much groups multiply the squared width of an interval; 1 without groups."""
    return groups.inflation(values_N) if groups is not None else 1.0


def rows_of_classes(classes_N: Array, num_classes: int) -> list[Array]:
    """Return the positions of the samples of each class (K)."""
    ends = np.bincount(classes_N, minlength=num_classes).cumsum()[:-1]
    return np.split(np.argsort(classes_N, kind="stable"), ends)


def shares(
    right: Sequence[Array], rows: Sequence[Array], groups: ImageGroups | None
) -> list[MetricEstimate]:
    """Return the share of right images among some, for several parts at once, as `share` does.

    Args:
        right: whether each image of a part is right.
        rows: the positions of the images of each part.
        groups: the groups that all images form; None if the images are independent.
    """
    hits_M, n_M = (np.array(list(map(count, right)), np.float64) for count in (np.sum, len))
    if groups is None:
        return proportions(hits_M, n_M)
    effective_M = n_M.copy()
    for place, (right_N, chosen) in enumerate(zip(right, rows, strict=True)):
        if own := groups.among(chosen):
            effective_M[place] = own.effective_size(right_N.astype(np.float64))
    return proportions(hits_M, n_M, effective_M)


def precision_recall_f1(
    true: Sequence[Array], predicted: Sequence[Array], groups: ImageGroups | None
) -> tuple[list[MetricEstimate], list[MetricEstimate], list[MetricEstimate]]:
    """Return precision, recall and F1 of K classes with their intervals.

    F1 = 2 J / (1 + J) increases with the Jaccard index J, a proportion: the hits among the
    images that are of the class or predicted as it. So J's interval is transformed.

    Args:
        true: positions of the images of each class, each once.
        predicted: positions of the images that are predicted as each class, each once.
        groups: the groups that all images form; None if the images are independent.
    """
    hits = [np.intersect1d(*both, assume_unique=True) for both in zip(true, predicted, strict=True)]
    unions = [np.union1d(*both) for both in zip(true, predicted, strict=True)]
    precision, recall, jaccard = (
        shares(list(map(np.isin, rows, hits)), rows, groups) for rows in (predicted, true, unions)
    )
    return precision, recall, list(map(f1_of_jaccard, jaccard))


def share(right_N: Array, groups: ImageGroups | None) -> MetricEstimate:
    """Return the share of the images that are right, with its mid-P interval.

    Args:
        right_N: whether each image is right.
        groups: the groups that the images form; None if the images are independent.
    """
    return shares([right_N], [np.arange(len(right_N))], groups)[0]
