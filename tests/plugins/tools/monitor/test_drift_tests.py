"""Tests of `patchline.plugins.tools.monitor.drift_tests`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp

from patchline.plugins.tools.monitor.drift_tests import (
    ClassShares,
    FeatureKernel,
    class_shares,
    compare_outputs,
    distances,
    drift_tests,
    fewest_images,
    permutation_test,
)
from tests.plugins.tools.monitor.reference import reference_of


@pytest.mark.parametrize(("images", "features"), [(2000, 3), (12, 3), (12, 0), (4, 0)])
def test_fewer_images_than_the_fewest_show_no_drift_however_gross(
    images: int, features: int
) -> None:
    """With so many, images beyond all of the reference are found."""
    generator, level = np.random.default_rng(images), 0.025 / 365
    first = generator.uniform(0.2, 0.8, images)
    probabilities = np.stack([first, 1 - first], axis=1)
    reference = reference_of(probabilities, generator.normal(size=(images, features)))
    fewest = fewest_images(reference, level, has_features=bool(features))
    for count in (fewest, fewest - 1):
        outputs = np.tile([[1.0, 0.0]], (count, 1))
        far = np.full((count, features), 50.0) if features else None
        found = drift_tests(reference, outputs, far, level, seed=0, classes=("a", "b"))
        assert found.drift == (count == fewest)


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


def test_the_statistic_is_the_discrepancy_of_the_gaussian_kernel() -> None:
    """Computed directly from all pairs, up to the error of the random features."""
    generator = np.random.default_rng(0)
    before, now = generator.normal(size=(150, 6)), generator.normal(0.6, 1, size=(100, 6))
    kernel = FeatureKernel(before)
    own, other, across = (
        np.exp(-cdist(a, b, "sqeuclidean") / (2 * kernel.width**2)).mean()
        for a, b in ((before, before), (now, now), (before, now))
    )
    direct = own + other - 2 * across
    assert kernel.compare(now, 0.05, seed=1).statistic == pytest.approx(direct, rel=0.2)
    drifted = np.concatenate([before[:40], generator.normal(4, 1, size=(10, 6))])
    assert set(np.argsort(-kernel.excess(drifted))[:10]) == set(range(40, 50))  # for the page


def test_the_p_value_is_that_of_all_permutations() -> None:
    """For two small samples, whose 462 divisions can all be listed."""
    generator = np.random.default_rng(3)
    before, now = generator.normal(size=(6, 8)), generator.normal(0.5, 1, size=(5, 8))
    pooled = np.concatenate([now, before]).astype(np.float32)
    centred = pooled - pooled.mean(axis=0)
    observed, *others = (
        (centred[list(rows)].sum(axis=0) ** 2).sum()
        for rows in itertools.combinations(range(11), 5)
    )
    exact = (1 + np.sum(np.array(others) >= observed * (1 - 1e-6))) / 462
    found = [permutation_test(pooled[5:], pooled[:5], 1e-4, seed).p_value for seed in range(40)]
    assert np.mean(found) == pytest.approx(exact, rel=0.15)


def test_the_null_distribution_of_p_values_is_uniform() -> None:
    """Below any level lies at most that share, also below one that 200 permutations cannot reach.

    Without drift, it stops after some dozens of permutations.
    """
    generator, p_values, draws = np.random.default_rng(4), [], []
    for seed in range(200):
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


def test_features_that_are_all_the_same_do_not_divide_by_zero() -> None:
    """A model may have collapsed."""
    kernel = FeatureKernel(np.ones((30, 3)))
    assert kernel.compare(np.ones((20, 3)), 0.01, seed=0).p_value > 0.5


def test_the_effect_size_does_not_depend_on_the_number_of_images() -> None:
    """It is near 0 without drift, and else near the distance that all images together have."""
    generator = np.random.default_rng(8)
    kernel = FeatureKernel(generator.normal(size=(500, 5)))
    mapped = kernel.mapped(generator.normal(0.5, 1, (20_000, 5)))
    apart = ((mapped.mean(axis=0) - kernel.reference_MF.mean(axis=0)) ** 2).sum()
    whole = math.sqrt(apart / kernel.reference_MF.var(axis=0).sum())
    for shift, count, expected in ((0.5, 30, whole), (0.5, 300, whole), (0, 300, 0)):
        images = [generator.normal(shift, 1, (count, 5)) for _ in range(20)]
        effects = [kernel.compare(each, 0.5, seed=0).effect for each in images]
        assert np.mean(effects) == pytest.approx(expected, rel=0.12, abs=0.06)


CENTRES = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]])
BEFORE = [0.5, 0.3, 0.2]


def outputs(features_ND: np.ndarray) -> np.ndarray:
    """Return the true posterior of normal classes with the shares of the reference."""
    squares = ((features_ND[:, None] - CENTRES) ** 2).sum(axis=2)
    weights = np.array(BEFORE) * np.exp(-squares / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def drawn(shares: list[float], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and features."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, count, p=shares)
    return labels, CENTRES[labels] + generator.normal(size=(count, 3))


def compared(
    now_ND: np.ndarray, seed: int, shares: list[float] = BEFORE, images: int = 1500
) -> ClassShares:
    """Compare images with a reference of such shares."""
    labels, before_MD = drawn(shares, images, 1000 + seed)
    reference = reference_of(outputs(before_MD), before_MD, labels)
    return class_shares(reference, outputs(now_ND), now_ND, ("a", "b", "c"), seed=seed)


def test_new_shares_alone_are_told_from_changed_images() -> None:
    """The shares are estimated, and the test within classes holds its level."""
    images = [drawn([0.2, 0.2, 0.6], 200, seed)[1] for seed in range(15)]
    results = [compared(each, seed) for seed, each in enumerate(images)]
    assert sum(bool(each.explains) for each in results) >= 13
    first = results[0].changes[0]
    assert first.label == "c"
    assert first.before == pytest.approx(0.2, abs=0.05)
    assert np.mean([each.changes[0].now for each in results]) == pytest.approx(0.6, abs=0.05)
    assert results[0].sentence().startswith("The shares of the classes changed (c ")
    for seed in range(5):
        moved = compared(images[seed] + 1, seed)
        assert moved.explains is False
        assert moved.sentence().startswith("The images within the classes changed")


def test_too_few_reference_images_of_the_classes_leave_it_unknown() -> None:
    """What cannot be compared is not said to be unchanged."""
    result = compared(drawn([0, 0, 1], 100, 1)[1], 0, [0.98, 0.01, 0.01], 300)
    assert result.explains is None
    assert "is not known" in result.sentence()
