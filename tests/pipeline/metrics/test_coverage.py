"""How often intervals hold the truth, by simulation; the docs have the whole table."""

from __future__ import annotations

import pytest

from benchmarks.statistical_methods import Setting, coverage_rows, simulate_intervals

_EVEN_3 = (1 / 3,) * 3


def test_intervals_cover_for_twenty_images() -> None:
    """In 40 samples of 20 images no metric's interval misses the truth much more than it may."""
    found = simulate_intervals(Setting(_EVEN_3, 0.8), 20, 40)
    assert len(found) > 15
    assert {one.metric for one in found if one.covered < 0.86} == set()


@pytest.mark.slow
@pytest.mark.parametrize("images", [20, 100])
@pytest.mark.parametrize("accuracy", [0.7, 0.9, 0.99])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.6, 0.3, 0.1), (0.1,) * 10], ids=len)
def test_intervals_cover_as_often_as_the_table_says(
    shares: tuple[float, ...], accuracy: float, images: int
) -> None:
    """In 400 samples every metric's interval holds the truth in nearly 90% or more."""
    found = simulate_intervals(Setting(shares, accuracy), images, 400)
    assert {one.metric for one in found if one.covered < 0.86} == set()


def test_table_names_the_lowest_coverage() -> None:
    """The table has a line for each metric and n, with the setting that covers least."""
    found = [
        coverage
        for accuracy in (0.8, 0.5)
        for coverage in simulate_intervals(Setting(_EVEN_3, accuracy), 20, 2)
    ]
    lines = coverage_rows(found)
    assert lines[2].startswith("| accuracy | 20 | 2 |")
    assert len(lines) == 2 + len({one.metric for one in found})
