"""Groups of images that are not independent of each other: a patient's, a video's, a burst's.

With groups, the groups are the sample, not the images. So a test takes whole groups, and an
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

from patchline.pipeline.evaluation.metrics.intervals import (
    TAIL,
    MetricEstimate,
    proportion,
    with_effective_size,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ImageGroups:
    """Which images belong together; an image without a group is a group of its own."""

    codes_N: Array
    """Number of each image's group, from 0."""
    count: int
    """G."""

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
            values_N: of the images, or the influence of each on a metric.
        """
        size = self.effective_size(values_N)
        return len(values_N) / size if size else float("inf")


def inflation(values_N: Array, groups: ImageGroups | None) -> float:
    """Return by how much groups multiply the squared width of an interval; 1 without groups."""
    return groups.inflation(values_N) if groups is not None else 1.0


def shares(
    right_N: Array, classes_N: Array, num_classes: int, groups: ImageGroups
) -> list[MetricEstimate]:
    """Return the share of right images of each class (K), with its mid-P interval.

    Args:
        right_N: whether each image is.
        classes_N: of the images, true or predicted ones.
        num_classes: K.
        groups: of the images.
    """
    ends = np.bincount(classes_N, minlength=num_classes).cumsum()[:-1]
    by_class = np.split(np.argsort(classes_N, kind="stable"), ends)
    return [share_of_some(right_N, rows, groups) for rows in by_class]


def share_of_some(right_N: Array, rows: Array, groups: ImageGroups | None) -> MetricEstimate:
    """Return the share of right images among some, given their positions."""
    own = groups.among(rows) if groups is not None else None
    return share(right_N[rows], own)


def share(right_N: Array, groups: ImageGroups | None) -> MetricEstimate:
    """Return the share of the images that are right, with its mid-P interval.

    Args:
        right_N: whether each image is.
        groups: of the images; None if these are independent.
    """
    successes, n = int(right_N.sum()), len(right_N)
    if groups is None or n == 0:
        return proportion(successes, n)
    size = groups.effective_size(right_N.astype(np.float64))
    return with_effective_size(successes / n, n=n, effective_n=size)
