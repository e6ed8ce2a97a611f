"""The statistics of a forecast: power laws, their uncertainty, and how often they are right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from benchmarks.forecast import simulate
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.plugins.tools.forecast.learning_curve import (
    MeasuredFits,
    fit_learning_curve,
    fit_power_laws,
)

RATIOS = np.array([1 / 8, 1 / 4, 1 / 2, 1])
EVEN = np.ones(4)


def fits_with(errors: list[float], images: int, labels: int = 1600, seed: int = 0) -> MeasuredFits:
    """Return three fits of each share, the hardest images of which are wrong, with some noise."""
    generator = np.random.default_rng(seed)
    difficulty_N = generator.random(images)
    sizes = [int(labels * ratio) for ratio in RATIOS for _ in range(3)]
    wrong = [
        np.clip(difficulty_N + 0.02 * generator.normal(size=images), 0, 1) > 1 - error
        for error in np.repeat(errors, 3)
    ]
    return MeasuredFits(np.array(sizes), np.array(wrong))


@pytest.mark.parametrize(("slope", "exponent", "offset"), [(0.2, 0.4, 0.1), (0.3, 0.25, 0.0)])
def test_a_power_law_is_recovered(slope: float, exponent: float, offset: float) -> None:
    """Without noise, the curve goes through the truth, also where nothing was measured."""
    errors_RS = (slope * RATIOS**-exponent + offset)[None]
    laws = fit_power_laws(RATIOS, errors_RS, EVEN, has_offset=True)
    for ratio in (0.125, 1.0, 2.0, 4.0):
        truth = slope * ratio**-exponent + offset
        assert laws.errors(ratio)[0] == pytest.approx(truth, abs=2e-3)


@pytest.mark.parametrize("has_offset", [True, False])
def test_no_curve_that_scipy_finds_fits_better(has_offset: bool) -> None:
    """Bounded least squares from several starts, on noisy errors, some of which rise."""
    generator = np.random.default_rng(0)
    falling_RS = 0.2 * RATIOS**-0.4 + 0.1
    errors_RS = np.abs(falling_RS + generator.normal(scale=0.05, size=(12, 4)))
    weights_S = np.array([1.0, 2.0, 3.0, 4.0])
    laws = fit_power_laws(RATIOS, errors_RS, weights_S, has_offset=has_offset)
    ours_RS = np.stack([laws.errors(ratio) for ratio in RATIOS], axis=1)
    assert (laws.slope_R >= 0).all()
    assert ((laws.offset_R >= 0) & (laws.offset_R <= 1)).all()
    most = 1.0 if has_offset else 1e-9
    for errors_S, ours_S in zip(errors_RS, ours_RS, strict=True):

        def residuals(law: np.ndarray, errors_S: np.ndarray = errors_S) -> np.ndarray:
            slope, exponent, offset = law
            curve_S = slope * RATIOS**-exponent + offset
            weighted_S: np.ndarray = np.sqrt(weights_S) * (curve_S - errors_S)
            return weighted_S

        bounds = ([0, 0, 0], [1, 2, most])
        starts = ([0.2, exponent, most / 10] for exponent in (0.1, 0.4, 1.5))
        costs = [2 * least_squares(residuals, start, bounds=bounds).cost for start in starts]
        assert (weights_S * (ours_S - errors_S) ** 2).sum() <= min(costs) * 1.02 + 1e-5


def test_the_intervals_hold_the_truth() -> None:
    """Of 150 power laws, at least 90 %; those that are told too, and their center is right."""
    outcomes = list(simulate(150))
    told = [each for each in outcomes if each.told]
    assert len(told) >= 50
    for chosen in (outcomes, told):
        assert np.mean([each.holds for each in chosen]) >= 0.9
        errors = [each.forecast.value - each.truth for each in chosen]
        assert abs(np.median(errors)) < 0.01
    widths = [each.forecast.high - each.forecast.low for each in outcomes]
    before = [each.now.high - each.now.low for each in outcomes]
    assert np.median(np.array(widths) / before) < 2


def test_a_flat_curve_is_not_told() -> None:
    """Neither where all shares are equally good, nor where hardly an image is wrong."""
    for errors in ([0.2, 0.2, 0.2, 0.2], [0.01, 0.008, 0.008, 0.008]):
        curve = fit_learning_curve(fits_with(errors, 400), 0)
        assert not curve.can_tell(3200)


def test_a_steep_curve_is_told() -> None:
    """The forecast is above what was measured, and its interval contains it."""
    fits = fits_with([0.5, 0.38, 0.29, 0.22], 2000)
    curve = fit_learning_curve(fits, 0)
    assert curve.can_tell(3200)
    then = curve.accuracy(3200)
    assert then.low < then.value < then.high
    assert then.value == pytest.approx(1 - 0.167, abs=0.02)
    assert fits.accuracy(1600).value < then.value
    assert curve.accuracy(6400).value > then.value


def test_the_price_of_a_gain_is_the_inverse_of_the_curve() -> None:
    """With so many more labels, the gain is that one; some gains have no price."""
    curve = fit_learning_curve(fits_with([0.5, 0.38, 0.29, 0.22], 2000), 0)
    more, low, high = curve.labels_for(0.02)
    assert low < more < high
    assert curve.gain(1600 + more).value == pytest.approx(0.02, abs=4e-3)
    assert curve.labels_for(0.9) == (np.inf, np.inf, np.inf)


def test_groups_make_a_forecast_less_certain() -> None:
    """Images of a group that are all wrong or all right count as few."""
    fits = fits_with([0.5, 0.38, 0.29, 0.22], 200)
    repeated = np.repeat(fits.wrong_FN, 5, axis=1)
    codes = np.repeat(np.arange(200), 5)
    alone = fit_learning_curve(MeasuredFits(fits.sizes_F, repeated), 0).accuracy(3200)
    groups = ImageGroups.of(codes)
    grouped = fit_learning_curve(MeasuredFits(fits.sizes_F, repeated, groups), 0).accuracy(3200)
    assert grouped.high - grouped.low > 1.5 * (alone.high - alone.low)


def test_the_same_seed_gives_the_same_forecast() -> None:
    """Whatever else has drawn random numbers."""
    fits = fits_with([0.5, 0.38, 0.29, 0.22], 300)
    first, again = (fit_learning_curve(fits, 3).accuracy(3200) for _ in range(2))
    assert first == again
