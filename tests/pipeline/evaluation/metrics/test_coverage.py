"""How often intervals hold the truth, by simulation; the docs have the whole table."""

from __future__ import annotations

import pytest

from benchmarks.statistical_methods import Setting, simulate_intervals


def test_intervals_cover_for_twenty_images() -> None:
    """In 40 samples of 20 images no metric's interval misses the truth much more than it may."""
    found = simulate_intervals(Setting((1 / 3,) * 3, 0.8), 20, 40)
    assert len(found) > 15
    assert {one.metric for one in found if one.covered < 0.86} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "accuracy", "images"),
    [((0.5, 0.5), 0.99, 20), ((0.6, 0.3, 0.1), 0.9, 20), ((0.1,) * 10, 0.7, 100)],
    ids=["two classes", "uneven classes", "ten classes"],
)
def test_intervals_cover_as_often_as_the_table_says(
    shares: tuple[float, ...], accuracy: float, images: int
) -> None:
    """In 150 samples every metric's interval holds the truth in nearly 90% or more."""
    found = simulate_intervals(Setting(shares, accuracy), images, 150)
    assert {one.metric for one in found if one.covered < 0.86} == set()
