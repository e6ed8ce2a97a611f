"""Split conformal prediction: thresholds whose error rate is guaranteed for images like these.

A score of each held-out image is compared with that of a new one. If all of them are exchangeable,
the new score is at most the k-th smallest of n held-out ones with a probability of at least
k / (n + 1): Angelopoulos and Bates, A Gentle Introduction to Conformal Prediction (arXiv
2107.07511), section 1. Nothing is assumed about the model. On average over held-out samples the
probability is exact up to 1 / (n + 1); with one given sample it varies as a beta distribution
(section 3.2).

Images of one group, such as the photographs of one patient, are not exchangeable with those of
another, but whole groups are. Then each group gets the same weight, and the guarantee is for an
image of a new group: Lee, Barber and Willett, Distribution-free inference with hierarchical data
(arXiv 2306.06342), section 3. Groups of a single image give the ordinary threshold.

This module needs numpy alone: a packaged model holds it.

Shapes: N held-out images, B images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_RANK_ROUNDING = 1e-9
"""So that (n + 1) * 0.95 with n = 19 is 19, not 19.000000000000004."""


def conformal_threshold(
    scores_N: np.ndarray[Any, Any], level: float, groups_N: Sequence[str] | None = None
) -> float | None:
    """Return the value that a new image's score does not exceed with at least this probability.

    Args:
        scores_N: scores of held-out images, some of which may be equal.
        level: the probability, in (0, 1).
        groups_N: the group of each image; None if each image is its own.

    Returns:
        None if there are too few images, or groups, to know: see `fewest_for`.
    """
    scores = np.asarray(scores_N, np.float64)
    _, group, sizes = np.unique(
        np.arange(len(scores)) if groups_N is None else np.asarray(groups_N, dtype=str),
        return_inverse=True,
        return_counts=True,
    )
    if len(sizes) < fewest_for(level):
        return None
    order = np.argsort(scores, kind="stable")
    mass = np.cumsum(1 / sizes[group][order])  # in groups; those of the new image are beyond
    place = int(np.searchsorted(mass, (len(sizes) + 1) * level - _RANK_ROUNDING))
    return float(scores[order[min(place, len(scores) - 1)]])


def fewest_for(level: float) -> int:
    """Return the number of images, or groups, from which a level on is known at all."""
    return int(np.ceil(level / (1 - level) - _RANK_ROUNDING))


def set_members(
    probabilities_BK: np.ndarray[Any, Any], least_probability: float | np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return which classes are in the set of each image, as booleans (B, K).

    A set holds every class with at least this probability, given as one number or as one for each
    class (Sadinle, Lei and Wasserman, Least ambiguous set-valued classifiers with bounded error
    levels, arXiv 1609.00451), and always the most probable class, so that it is never empty.
    """
    members_BK: np.ndarray[Any, Any] = probabilities_BK >= least_probability
    best_B = probabilities_BK.argmax(axis=1)
    members_BK[np.arange(len(best_B)), best_B] = True
    return members_BK


def least_probability(
    probabilities_N: np.ndarray[Any, Any], coverage: float, groups_N: Sequence[str] | None = None
) -> float | None:
    """Return the least probability of a member, so that sets hold the true class that often.

    Args:
        probabilities_N: probability that the model gives the true class of each held-out image.
        coverage: probability that the set of a new image holds its true class, in (0, 1).
        groups_N: the group of each image; None if each image is its own.

    Returns:
        None if there are too few images, or groups, to know.
    """
    threshold = conformal_threshold(1 - np.asarray(probabilities_N, np.float64), coverage, groups_N)
    return None if threshold is None else max(0.0, 1 - threshold)
