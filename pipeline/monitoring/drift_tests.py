"""The tests of one check, of outputs and of features, with the level divided between them.

Shapes: N images, K outputs, D features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.pipeline.monitoring.feature_test import FeatureKernel
from patchline.pipeline.monitoring.output_tests import compare_outputs

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


def drift_tests(
    reference: ReferenceImages,
    probabilities_NK: Array,
    features_ND: Array | None,
    level: float,
    *,
    seed: int,
    kernel: FeatureKernel | None = None,
) -> DriftTests:
    """Compare what a model computes for images with its reference.

    Args:
        reference: of the version.
        probabilities_NK: of the images.
        features_ND: of the images; None if they are not known.
        level: of this check.
        seed: of the permutations.
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
        )
    together = min(1.0, min(each.p_value for each in tests.values()) * len(tests))
    return DriftTests(tests=tests, p_value=together, level=level, unknown=unknown)
