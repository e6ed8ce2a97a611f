"""The rate that the progress shows."""

from __future__ import annotations

import pytest

from patchline.pipeline.training.speed.recent_rate import RecentRate


def test_the_progress_shows_the_rate_of_the_last_seconds() -> None:
    """A busy moment is seen at once and forgotten after ten seconds; the mean would keep it."""
    rate, seconds, images = RecentRate(), 0.0, 0
    assert rate.add(0.5, 50) == pytest.approx(100)
    for _ in range(200):
        seconds, images = seconds + 0.1, images + 10
        shown = rate.add(0.5 + seconds, 50 + images)
    assert shown == pytest.approx(100)
    for _ in range(12):
        seconds, images = seconds + 1.0, images + 10
        shown = rate.add(0.5 + seconds, 50 + images)
    assert shown == pytest.approx(10)
    assert rate.add(3.0, 30) == pytest.approx(10)  # training went back
    assert rate.add(5.0, 50) == pytest.approx(10)
