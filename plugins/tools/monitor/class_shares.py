"""Whether a drift is one of the shares of the classes alone.

If the images of each class are like before and only the shares of the classes have changed (label
shift), the reference differs from the new images, but not once its images are drawn at the new
shares. Those are estimated from the outputs by expectation maximization: Saerens, Latinne and
Decaestecker, Adjusting the outputs of a classifier to new a priori probabilities (Neural
Computation 14, 2002), section 2.2. The true classes of the reference images are known.

Shapes: M reference images, N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.plugins.tools.monitor.drift_tests import drift_tests

Array = np.ndarray[Any, Any]
LEVEL = 0.05
"""Of the test within classes. It decides about a sentence, not about an alarm."""
_FEWEST = 20
_ROUNDS, _TOLERANCE = 1000, 1e-6
_NAMED = 2


class ShareChange(FrozenModel):
    """The share of a class, estimated from the outputs."""

    label: str
    before: float
    now: float


class ClassShares(FrozenModel):
    """Whether new shares of the classes explain a drift."""

    changes: tuple[ShareChange, ...]
    """Of all classes, the largest first."""
    images: int
    """Reference images that were drawn at the new shares."""
    p_value: float | None
    """Of all tests of the new images against these; None if they are too few."""

    @property
    def explains(self) -> bool | None:
        """Whether no change within the classes was found; None if it is not known."""
        return None if self.p_value is None else self.p_value > LEVEL

    def sentence(self) -> str:
        """Return what has changed: the shares of the classes, or the images within them."""
        drawn = f"{self.images:,} reference images drawn at the new shares"
        if self.p_value is None:
            return (
                "Whether the images within the classes changed is not known: only "
                f"{drawn} would be left to compare."
            )
        if self.explains:
            named = ", ".join(
                f"{each.label} {each.before:.0%} → {each.now:.0%}" for each in self.changes[:_NAMED]
            )
            return (
                f"The shares of the classes changed ({named}). No change of the images within the "
                f"classes was found (p = {self.p_value:.2g}, {drawn})."
            )
        return (
            "The images within the classes changed: new shares of the classes do not explain the "
            f"difference (p = {self.p_value:.2g}, {drawn})."
        )


def class_shares(
    reference: ReferenceImages,
    probabilities_NK: Array,
    features_ND: Array | None,
    classes: Sequence[str],
    *,
    seed: int,
) -> ClassShares:
    """Compare images with reference images that are drawn at the estimated shares of the classes.

    Args:
        reference: of the version, one class an image.
        probabilities_NK: of the images.
        features_ND: of the images; None if they are not known.
        classes: their names.
        seed: of what is drawn.
    """
    before_K = reference.probabilities_MK.astype(np.float64).mean(axis=0)
    before_K = before_K / before_K.sum()
    now_K = _estimated(before_K, np.asarray(probabilities_NK, np.float64))
    ratio_K = np.divide(now_K, before_K, out=np.zeros_like(now_K), where=before_K > 0)
    ratio_M = ratio_K[reference.labels]
    drawn_M = np.random.default_rng(seed).random(len(reference)) * ratio_M.max() < ratio_M
    drawn = reference.of(np.flatnonzero(drawn_M))
    p_value = None
    if len(drawn) >= _FEWEST:
        p_value = drift_tests(
            drawn, as_kept(probabilities_NK), features_ND, LEVEL, seed=seed, classes=classes
        ).p_value
    order = np.argsort(-np.abs(now_K - before_K), kind="stable").tolist()
    changes = tuple(
        ShareChange(
            label=classes[place],
            before=round(float(before_K[place]), 5),
            now=round(float(now_K[place]), 5),
        )
        for place in order
    )
    return ClassShares(changes=changes, images=len(drawn), p_value=p_value)


def _estimated(before_K: Array, probabilities_NK: Array) -> Array:
    """Return the shares of the classes among images, from calibrated probabilities.

    Args:
        before_K: shares for which the probabilities hold.
        probabilities_NK: of the images.
    """
    now_K = before_K
    for _ in range(_ROUNDS):
        ratio_K = np.divide(now_K, before_K, out=np.zeros_like(now_K), where=before_K > 0)
        weighted_NK = probabilities_NK * ratio_K
        sums_N1 = weighted_NK.sum(axis=1, keepdims=True)
        next_K = (weighted_NK / np.maximum(sums_N1, 1e-300)).mean(axis=0)
        if np.abs(next_K - now_K).max() < _TOLERANCE:
            return np.asarray(next_K)
        now_K = next_K
    return np.asarray(now_K)
