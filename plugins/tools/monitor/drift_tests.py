"""The tests of one check, of outputs and of features, with the level divided between them.

Shapes: N images, K outputs, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.plugins.tools.monitor.feature_test import FeatureKernel
from patchline.plugins.tools.monitor.output_tests import compare_outputs

Array = np.ndarray[Any, Any]
OUTPUTS, FEATURES = "outputs", "features"


class DriftTest(FrozenModel):
    """One test of a check."""

    p_value: float
    level: float
    """Its part of the check's level; below it, the images differ from the reference."""
    statistic: float
    """Of the outputs, the largest Kolmogorov-Smirnov distance; of the features, the squared maximum
    mean discrepancy."""
    method: str
    effect: float | None = None
    """How large the difference is; None in a check of an earlier Patchline."""
    effect_unit: str = ""
    """What `effect` is, in words."""

    @property
    def is_significant(self) -> bool:
        """Whether the images differ from the reference."""
        return self.p_value <= self.level


class DriftTests(FrozenModel):
    """The tests of a check, and what they say together."""

    tests: dict[str, DriftTest]
    p_value: float
    """Of all tests together (Bonferroni); at most the level exactly if one test is significant."""
    level: float
    unknown: dict[str, str]
    """Why a test was not possible, by its name."""

    @property
    def drift(self) -> bool:
        """Whether a test is significant."""
        return any(each.is_significant for each in self.tests.values())


def fewest_images(reference: ReferenceImages, level: float, *, has_features: bool) -> int:
    """Return the smallest number of images with which a test can reach its level at all.

    That is, where all of them lie beyond all reference images: as probable without drift as one
    division of the images, or two for a test that is two-sided, among all divisions.

    Args:
        reference: of the version, independent images.
        level: of a check.
        has_features: whether features can be tested, too.
    """
    share = level / 2 if has_features else level
    divisions = 1 if has_features else 2 * reference.probabilities_MK.shape[1]
    enough = (n for n in count(1) if divisions <= share * math.comb(len(reference) + n, n))
    return next(enough)


def drift_tests(
    reference: ReferenceImages,
    probabilities_NK: Array,
    features_ND: Array | None,
    level: float,
    *,
    seed: int,
    classes: Sequence[str],
    kernel: FeatureKernel | None = None,
) -> DriftTests:
    """Compare what a model computes for images with its reference.

    Args:
        reference: of the version.
        probabilities_NK: of the images.
        features_ND: of the images; None if they are not known.
        level: of this check.
        seed: of the permutations.
        classes: names of the outputs.
        kernel: of the reference; by default it is made.
    """
    unknown = {}
    if not reference.has_features:
        unknown[FEATURES] = reference.why_no_features or "the version's package holds no features"
    elif features_ND is None:
        unknown[FEATURES] = "the features of these images are not known"
    share = level / (1 if unknown else 2)
    outputs = compare_outputs(
        reference.probabilities_MK.astype(np.float64),
        as_kept(probabilities_NK).astype(np.float64),
    )
    tests = {
        OUTPUTS: DriftTest(
            p_value=outputs.p_value,
            level=share,
            statistic=outputs.statistic,
            method=f"Kolmogorov-Smirnov, {probabilities_NK.shape[1]} outputs, Bonferroni",
            effect=outputs.statistic,
            effect_unit=(
                "largest difference of two distribution functions, 0 to 1; of "
                f"{classes[outputs.output]}"
            ),
        )
    }
    if not unknown and features_ND is not None:
        kernel = kernel or FeatureKernel(reference.features_MD)
        features = kernel.compare(as_kept(features_ND), share, seed)
        tests[FEATURES] = DriftTest(
            p_value=features.p_value,
            level=share,
            statistic=features.statistic,
            method=f"maximum mean discrepancy, {features.draws:,} permutations",
            effect=features.effect,
            effect_unit="distance of the means, in standard deviations of the reference",
        )
    together = min(1.0, min(each.p_value for each in tests.values()) * len(tests))
    return DriftTests(tests=tests, p_value=together, level=level, unknown=unknown)
