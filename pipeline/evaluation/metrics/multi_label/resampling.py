"""Bootstrap over images: how often each image is drawn, and metrics of all draws at once.

An image is drawn with all its labels, so that what its labels have in common counts (Efron and
Tibshirani 1993, An Introduction to the Bootstrap, chapter 6). Images of one group are drawn
together, and the standard deviation of the draws has as many degrees of freedom as there are
groups, less one: of few groups the draws themselves vary too little (Cameron, Gelbach and Miller
2008, Review of Economics and Statistics 90).

Shapes: N images, K labels, R draws, P positives of a label, E distinct scores of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import TAIL, ImageGroups
from patchline.pipeline.evaluation.metrics.mean_average_precision import find_ranked_labels

Array = np.ndarray[Any, Any]
DRAWS, FEWEST_DRAWS = 1000, 200
_MOST_NUMBERS = 4e8
"""Images x labels x draws; of more, fewer draws are made."""
_TOGETHER = 2**20
"""Images x draws of one piece: what the caches hold."""


def draws_for(images: int, num_labels: int) -> int:
    """Return the number of draws: 1,000, or fewer for many images and labels, at least 200."""
    return int(np.clip(_MOST_NUMBERS / max(1, images * num_labels), FEWEST_DRAWS, DRAWS))


def draw_counts(images: int, draws: int, seed: int = 0, rows: int = 1) -> Iterator[Array]:
    """Yield how often each image is drawn (N, r), some draws at a time.

    Args:
        images: N, the number of images, of which each draw takes N with replacement.
        draws: R, the number of draws.
        seed: the seed of the draws.
        rows: numbers that the caller makes of each image, which bounds the draws of one piece.
    """
    generator = np.random.default_rng(seed)
    together = max(1, min(draws, _TOGETHER // max(1, images * rows)))
    for start in range(0, draws, together):
        count = min(together, draws - start)
        drawn_NR = generator.integers(0, images, (images, count), np.int32)
        cells = (drawn_NR.astype(np.int64) * count + np.arange(count)).ravel()
        counts = np.bincount(cells, minlength=images * count).reshape(images, count)
        yield np.minimum(counts, 255).astype(np.uint8)


class Sample(NamedTuple):
    """What is drawn: images, or the groups that they form."""

    groups: ImageGroups | None
    """The groups that the images form; None if the images are independent."""
    draws: int
    seed: int = 0

    def drawn(self, images: int, rows: int = 1) -> Iterator[Array]:
        """Yield how often each image is drawn (N, r), some draws at a time.

        Args:
            images: N, the number of images.
            rows: numbers that the caller makes of each image, which bounds the draws of one piece.
        """
        if self.groups is None:
            yield from draw_counts(images, self.draws, self.seed, rows)
            return
        count = self.groups.count
        for counts_GR in draw_counts(count, self.draws, self.seed, rows * -(-images // count)):
            yield counts_GR[self.groups.codes_N]

    def units(self, images: int) -> int:
        """Return how many independent units there are: groups if there are any, else images."""
        return images if self.groups is None else self.groups.count

    def standard_error(self, drawn_R: Array) -> float:
        """Return that of a metric, given it of each draw; of a single group, nothing is known."""
        few = 1.0
        if self.groups is not None and self.groups.count > 1:
            few = math.sqrt(self.groups.count / (self.groups.count - 1))
        return float(drawn_R.std()) * few

    def variance(self, drawn_R: Array) -> float:
        """Return the variance of a metric as the width of its interval follows from it.

        With groups, it allows for their few degrees of freedom; nothing is known about one group.
        """
        from scipy.special import ndtri, stdtrit

        known = drawn_R[~np.isnan(drawn_R)]
        variance = float(known.var(ddof=1)) if len(known) > 1 else 0.0
        if self.groups is None:
            return variance
        freedom = self.groups.count - 1
        if freedom == 0:
            return math.inf
        few = float(stdtrit(freedom, 1 - TAIL) / ndtri(1 - TAIL)) ** 2
        return variance * few * (freedom + 1) / freedom

    def interval(
        self, value: float, drawn_R: Array, ends: tuple[float, float]
    ) -> tuple[float, float]:
        """Return both ends of the 95% interval: percentiles; with groups, those of Student's t.

        Args:
            value: the metric.
            drawn_R: the same of each draw, as far as known.
            ends: the smallest and the largest possible value.
        """
        from scipy.special import stdtrit

        low, high = ends
        if self.groups is None:
            low, high = map(float, np.quantile(drawn_R, (TAIL, 1 - TAIL)))
        elif self.groups.count > 1:
            half = float(stdtrit(self.groups.count - 1, 1 - TAIL)) * self.standard_error(drawn_R)
            low, high = max(low, value - half), min(high, value + half)
        return min(low, value), max(high, value)


class LabelRanking(NamedTuple):
    """The positives of one label among N images, from the highest score to the lowest."""

    order_N: Array
    """Images by score, the highest first."""
    positives_P: Array
    """Places of the positives in the order."""
    ends_P: Array
    """Last place with the score of each positive."""
    hits_P: Array
    """Number of positives up to that place, for each positive."""

    @classmethod
    def of(cls, scores_N: Array, labels_N: Array) -> LabelRanking:
        """Sort the images."""
        order = np.argsort(-scores_N, kind="stable")
        in_order = scores_N[order]
        last = np.append(np.flatnonzero(np.diff(in_order)), len(order) - 1)
        positives = np.flatnonzero(labels_N[order])
        ends = last[np.searchsorted(last, positives)]
        hits = np.searchsorted(positives, ends, side="right")
        return cls(order, positives, ends, hits)

    @property
    def average_precision(self) -> float:
        """The mean precision at the score of each positive; NaN without positives."""
        if not len(self.positives_P):
            return float("nan")
        return min(float((self.hits_P / (self.ends_P + 1.0)).mean()), 1.0)

    def drawn(self, counts_NR: Array) -> Array:
        """Return the average precision of each draw (R); NaN for those without positives.

        Images are counted from one positive's score to the next, not one by one.
        """
        if not len(self.positives_P):
            return np.full(counts_NR.shape[1], np.nan)
        ends, of_positive = np.unique(self.ends_P, return_inverse=True)
        in_order = counts_NR[self.order_N[: ends[-1] + 1]]
        starts = np.append(0, ends[:-1] + 1)
        up_to_ER = np.add.reduceat(in_order, starts, axis=0, dtype=np.int32).cumsum(axis=0)
        weights_PR = in_order[self.positives_P]
        hits_PR = np.cumsum(weights_PR, axis=0, dtype=np.int32)
        found_R = hits_PR[-1]
        precision = hits_PR[self.hits_P - 1] / np.maximum(up_to_ER[of_positive], 1)
        sums = np.einsum("pr,pr->r", precision, weights_PR)
        with np.errstate(invalid="ignore"):
            precisions: Array = sums / np.where(found_R, found_R, np.nan)
        return precisions


def rankings_of(scores_NK: Array, labels_NK: Array) -> list[LabelRanking]:
    """Return the rankings of the labels that some images have, and not all (`ranked_labels`)."""
    ranked = np.flatnonzero(find_ranked_labels(labels_NK))
    return [LabelRanking.of(scores_NK[:, k], labels_NK[:, k]) for k in ranked]


def compute_drawn_map(rankings: Sequence[LabelRanking], counts_NR: Array) -> Array:
    """Return the mAP of each draw (R); NaN of those that say nothing about any label."""
    unknown = np.full((1, counts_NR.shape[1]), np.nan)
    precisions = [each.drawn(counts_NR) for each in rankings]
    return mean_of_known(np.array(precisions or unknown), axis=0)


def mean_of_known(values: Array, axis: int) -> Array:
    """Return the mean of all that is not NaN; NaN if nothing is known."""
    known = ~np.isnan(values)
    number = known.sum(axis=axis)
    sums = np.where(known, values, 0.0).sum(axis=axis)
    mean: Array = np.where(number > 0, sums / np.maximum(number, 1), np.nan)
    return mean
