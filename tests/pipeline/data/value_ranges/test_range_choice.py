"""One range for a data set: which value is black, which is white, and what is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from patchline.pipeline.data.value_ranges.range_choice import (
    Observed,
    choose_range,
    loss_words,
)

Values = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def seen(kind: str, values: Values, declared: float = 0.0) -> Observed:
    sample = np.sort(values.astype(np.float64).ravel())
    return Observed(kind, float(sample[0]), float(sample[-1]), declared, sample)


def whole(low: int, high: int) -> Values:
    return RNG.integers(low, high + 1, 20_000)


@pytest.mark.parametrize(
    ("kind", "values", "declared", "expected"),
    [
        ("uint16", whole(0, 1023), 0, (0, 1023)),
        ("uint16", whole(3, 3071), 0, (0, 4095)),
        ("uint16", whole(0, 3000), 16383, (0, 16383)),
        ("float", RNG.uniform(0, 1, 20_000), 0, (0, 1)),
        ("float", RNG.uniform(-1, 1, 20_000), 0, (-1, 1)),
    ],
)
def test_values_that_fill_a_usual_range_get_it(
    kind: str, values: Values, declared: float, expected: tuple[float, float]
) -> None:
    """A full number of bits, what the files declare, or a usual range of floating-point numbers."""
    chosen = choose_range(seen(kind, values, declared), None)
    assert ((chosen.low, chosen.high), chosen.clipped, loss_words(chosen)) == (expected, 0, "")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("uint16", whole(29_000, 29_300)),  # a thermal camera, in hundredths of a kelvin
        ("uint16", np.append(whole(0, 900), whole(20_000, 65_535)[:5])),  # hot pixels
        ("uint16", np.append(whole(0, 900), np.full(9000, 65_535))),  # no data
        ("float", np.append(RNG.uniform(280, 310, 20_000), np.full(4000, -9999.0))),
    ],
)
def test_other_values_still_get_most_of_the_grey_levels(kind: str, values: Values) -> None:
    """An offset, a sign, hot pixels or missing ones do not leave a few grey levels for the rest."""
    chosen = choose_range(seen(kind, values), None)
    assert chosen.levels > 150
    assert chosen.low < chosen.high


def test_what_the_user_sets_is_taken_and_its_loss_is_said() -> None:
    """A window clips what is outside, a wide range leaves few levels, percentiles are measured."""
    values = seen("int16", whole(-1000, 1000))
    window = choose_range(values, (-160, 240))
    assert (window.low, window.high, window.origin) == (-160, 240, "set by data.value_range")
    assert window.clipped == pytest.approx(0.8, abs=0.02)
    assert loss_words(window) == "about 80 % of the pixels lie outside and are clipped"
    wide = choose_range(values, (-30_000, 30_000))
    assert "99 % of the pixels have only 10 grey levels for 1,98" in loss_words(wide)
    percentiles = choose_range(values, ("10%", "90%"))
    assert (percentiles.low, percentiles.high) == pytest.approx((-800, 800), abs=20)


@pytest.mark.parametrize(("values", "ends"), [([7.5] * 50, (7.5, 7.5)), ([], (np.inf, -np.inf))])
def test_constant_and_missing_values_have_a_range_too(
    values: list[float], ends: tuple[float, float]
) -> None:
    """Nothing is divided by zero where all values are the same, or none is known."""
    chosen = choose_range(Observed("float", *ends, 0.0, np.array(values)), None)
    assert np.isfinite([chosen.low, chosen.high]).all()
    assert chosen.high > chosen.low
