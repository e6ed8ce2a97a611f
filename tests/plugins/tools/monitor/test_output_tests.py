"""Tests of `patchline.plugins.tools.monitor.output_tests`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from patchline.plugins.tools.monitor.output_tests import compare_outputs, distances


@pytest.mark.parametrize(
    ("reference", "images", "digits"), [(30, 20, 1), (400, 50, 9), (25, 400, 1)]
)
def test_distances_and_p_value_are_those_of_scipy(reference: int, images: int, digits: int) -> None:
    """Output by output, with ties or without, and the smallest p-value times their number."""
    generator = np.random.default_rng(reference)
    before = generator.dirichlet(np.ones(4), reference).round(digits)
    now = generator.dirichlet([1, 1, 1, 1.5], images).round(digits)
    expected = [ks_2samp(before[:, k], now[:, k]) for k in range(4)]
    np.testing.assert_allclose(
        distances(np.sort(before, axis=0), now), [each.statistic for each in expected]
    )
    result = compare_outputs(before, now)
    assert result.p_value == pytest.approx(min(1.0, 4 * min(each.pvalue for each in expected)))
    assert result.output == int(np.argmax([each.statistic for each in expected]))
