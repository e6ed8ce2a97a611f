"""Tests of `patchline.pipeline.monitoring.feature_test`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from patchline.pipeline.monitoring.feature_test import FeatureKernel, permutation_test


def test_the_statistic_is_the_discrepancy_of_the_gaussian_kernel() -> None:
    """Computed directly from all pairs, up to the error of the random features."""
    generator = np.random.default_rng(0)
    before, now = generator.normal(size=(150, 6)), generator.normal(0.6, 1, size=(100, 6))
    kernel = FeatureKernel(before)

    def mean(first: np.ndarray, second: np.ndarray) -> float:
        squares = ((first[:, None] - second[None]) ** 2).sum(axis=2)
        return float(np.exp(-squares / (2 * kernel.width**2)).mean())

    direct = mean(before, before) - 2 * mean(before, now) + mean(now, now)
    assert kernel.compare(now, 0.05, seed=1).statistic == pytest.approx(direct, rel=0.2)
    mapped = kernel.mapped(now)
    exact = ((mapped.mean(axis=0) - kernel.reference_MF.mean(axis=0)) ** 2).sum()
    assert kernel.compare(now, 0.05, seed=1).statistic == pytest.approx(exact, rel=1e-3)


def test_the_p_value_is_that_of_all_permutations() -> None:
    """For two small samples, whose 462 divisions can all be listed."""
    generator = np.random.default_rng(3)
    before, now = generator.normal(size=(6, 8)), generator.normal(0.5, 1, size=(5, 8))
    pooled = np.concatenate([before, now])
    pooled = pooled - pooled.mean(axis=0)
    sums = [
        (pooled[list(rows)].sum(axis=0) ** 2).sum() for rows in itertools.combinations(range(11), 5)
    ]
    observed = (pooled[6:].sum(axis=0) ** 2).sum()
    exact = float(np.mean(np.array(sums) >= observed * (1 - 1e-9)))
    estimates = [
        permutation_test(before.astype(np.float32), now.astype(np.float32), 1e-4, seed).p_value
        for seed in range(40)
    ]
    assert np.mean(estimates) == pytest.approx(exact, rel=0.15)


def test_the_null_distribution_of_p_values_is_uniform() -> None:
    """Below any level lies at most that share, also below one that 200 permutations cannot reach.

    Without drift, it stops after some dozens of permutations.
    """
    generator, p_values, draws = np.random.default_rng(4), [], []
    for seed in range(300):
        before, now = generator.normal(size=(60, 4)), generator.normal(size=(25, 4))
        result = permutation_test(before.astype(np.float32), now.astype(np.float32), 1e-3, seed)
        p_values.append(result.p_value)
        draws.append(result.draws)
    values = np.array(p_values)
    for level in (0.01, 0.05, 0.2, 0.5):
        spread = 3 * math.sqrt(level * (1 - level) / len(values))
        assert level - spread - 0.02 <= float((values <= level).mean()) <= level + spread
    assert np.median(draws) < 64


@pytest.mark.parametrize(("before", "now"), [(200, 30), (40, 300)])
def test_a_drift_reaches_a_level_that_many_looks_share(before: int, now: int) -> None:
    """0.05 over 30 checks and two tests; whichever sample is larger."""
    generator, level = np.random.default_rng(5), 0.05 / 60
    kernel = FeatureKernel(generator.normal(size=(before, 5)))
    assert kernel.compare(generator.normal(1.5, 1, size=(now, 5)), level, seed=0).p_value <= level


def test_the_witness_is_highest_for_the_images_that_drifted() -> None:
    """Those are shown on the page."""
    generator = np.random.default_rng(6)
    kernel = FeatureKernel(generator.normal(size=(100, 5)))
    now = np.concatenate([generator.normal(size=(40, 5)), generator.normal(4, 1, size=(10, 5))])
    assert set(np.argsort(-kernel.excess(now))[:10]) == set(range(40, 50))


def test_features_that_are_all_the_same_do_not_divide_by_zero() -> None:
    """A model may have collapsed."""
    kernel = FeatureKernel(np.ones((30, 3)))
    assert kernel.compare(np.ones((20, 3)), 0.01, seed=0).p_value > 0.5


def test_the_effect_size_does_not_depend_on_the_number_of_images() -> None:
    """It is near 0 without drift, and else near the distance that all images together have."""
    generator = np.random.default_rng(8)
    kernel = FeatureKernel(generator.normal(size=(2000, 5)))

    def mean_effect(shift: float, count: int) -> float:
        draws = [
            kernel.compare(generator.normal(shift, 1, (count, 5)), 0.5, seed=0).effect
            for _ in range(40)
        ]
        return float(np.mean(draws))

    mapped = kernel.mapped(generator.normal(0.5, 1, (50_000, 5)))
    apart = ((mapped.mean(axis=0) - kernel.reference_MF.mean(axis=0)) ** 2).sum()
    whole = math.sqrt(apart / kernel.reference_MF.var(axis=0).sum())
    assert mean_effect(0.5, 30) == pytest.approx(whole, rel=0.1)
    assert mean_effect(0.5, 300) == pytest.approx(whole, rel=0.05)
    assert mean_effect(0, 300) < 0.05
