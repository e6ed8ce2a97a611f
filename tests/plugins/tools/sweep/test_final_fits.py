"""The gain over the plan: its interval, and that only the validation split chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.training.train_result import TrainResult
from patchline.plugins.tools.sweep.final_fits import (
    gain_of_map,
    gain_of_shares,
    mean_of_seeds,
    optimism_of,
    plan_fits,
    winner,
)

Array = np.ndarray[Any, Any]


def _fits(
    generator: np.random.Generator, difficulty_N: Array, deviation: float, seeds: int = 3
) -> Array:
    """Return whether fits are right, whose accuracies differ by their seeds."""
    shifts = generator.normal(0, deviation, seeds)
    return np.stack(
        [
            generator.random(len(difficulty_N)) < np.clip(difficulty_N + shift, 0, 1)
            for shift in shifts
        ]
    )


def test_groups_of_the_gain_are_drawn_and_counted() -> None:
    """Copies of each image change nothing; one group is none."""
    generator, copies = np.random.default_rng(4), np.arange(60).repeat(5)
    before, after = (generator.random((3, 60)) < share for share in (0.6, 0.7))
    once, groups = gain_of_shares(before, after), ImageGroups.of(copies)
    grouped = gain_of_shares(before[:, copies], after[:, copies], groups=groups)
    assert (grouped.low, grouped.high, grouped.n) == pytest.approx((once.low, once.high, 300))
    labels = (generator.random((60, 3)) < 0.4).astype(np.uint8)
    bad, good = (
        np.repeat(generator.random((1, 60, 3)) + part * labels, 2, axis=0) for part in (0.3, 0.5)
    )
    once = gain_of_map(labels, bad, good)
    grouped = gain_of_map(labels[copies], bad[:, copies], good[:, copies], groups=groups)
    assert grouped.high - grouped.low == pytest.approx(once.high - once.low, rel=0.1)
    alone = ImageGroups.of([0] * 60)
    for each in (
        gain_of_shares(before, after, groups=alone),
        gain_of_map(labels, bad, good, groups=alone),
    ):
        assert (each.low, each.high) == (-1.0, 1.0)
    assert mean_of_seeds([0.8, 0.8], 100, 20).low < mean_of_seeds([0.8, 0.8], 100).low - 0.08


@pytest.mark.parametrize(("deviation", "seeds"), [(0.0, 3), (0.02, 3), (0.02, 2)])
def test_the_interval_of_the_gain_covers_no_gain_as_often_as_it_says(
    deviation: float, seeds: int
) -> None:
    """Of two equal settings, in at least 94% of 300 searches, whether seeds differ or not.

    Two seeds that agree may do so by chance: then the interval is that of the two alone.
    """
    generator, covered = np.random.default_rng(3), 0
    for _ in range(300):
        difficulty = generator.beta(4, 1, 1000)
        estimate = gain_of_shares(
            *(_fits(generator, difficulty, deviation, seeds) for _ in range(2))
        )
        covered += estimate.low <= 0 <= estimate.high
    assert covered >= 282


def test_equal_predictions_do_not_make_the_gain_certain() -> None:
    """With 300 images that all fits get right, a gain of a percentage point is possible."""
    right = np.ones((3, 300), bool)
    estimate = gain_of_shares(right, right)
    assert (estimate.low, estimate.high) == pytest.approx((-0.01, 0.01))


def test_the_gain_of_label_sets_is_one_in_map() -> None:
    """Scores that rank the labels against scores at random."""
    generator = np.random.default_rng(1)
    labels = (generator.random((200, 3)) < 0.4).astype(np.uint8)
    bad = generator.random((3, 200, 3))
    good = labels + 0.5 * generator.random((3, 200, 3))
    estimate = gain_of_map(labels, bad, good)
    assert estimate.low > 0.3
    assert gain_of_map(labels, bad, bad).value == 0


def test_optimism_is_the_best_metric_minus_what_other_seeds_reach() -> None:
    """The seeds alone make it uncertain."""
    estimate = optimism_of(0.95, [0.90, 0.91, 0.92], 100)
    assert estimate.value == pytest.approx(0.04)
    assert estimate.low < 0.04 < estimate.high
    assert estimate.high - estimate.value == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    assert mean_of_seeds([0.9, 0.9], 100).low == pytest.approx(0.848, abs=0.01)


@pytest.mark.parametrize(
    ("best", "again", "images"), [(49, 48, 50), (50, 50, 50), (4850, 4800, 5000)]
)
def test_seeds_with_equal_metrics_do_not_make_the_optimism_certain(
    best: int, again: int, images: int
) -> None:
    """Three equal counts of few images say little about how much seeds vary."""
    estimate = optimism_of(best / images, [again / images] * 3, images)
    assert estimate.value == pytest.approx((best - again) / images)
    assert estimate.high - estimate.low > 2 / images
    assert (estimate.low > 0) == (images == 5000)  # where the images alone leave little doubt


def _result(accuracy: float, loss: float) -> TrainResult:
    return TrainResult(
        best=Path("best"), best_step=1, best_validation_accuracy=accuracy,
        best_validation_loss=loss, steps=1, epochs=1, seconds=1, images_per_second=1,
        step_plan=((0, 0.0, 1),), precision="float32", device="cpu", threads=1, parameters=1,
        stopped_because="end", history=(),
    )  # fmt: skip


def test_the_registered_fit_is_the_one_of_the_best_settings_that_validates_best() -> None:
    """Not one of the plan, even if it is better; the seeds are ones that no trial has used."""
    fits = list(plan_fits(RunConfig(seed=7), RunConfig(seed=7), 3, is_plan=False))
    assert [(fit.kind, fit.seed) for fit in fits] == [
        (kind, seed) for seed in (8, 9, 10) for kind in ("best", "plan")
    ]
    assert {fit.config.seed for fit in fits} == {8, 9, 10}
    accuracies = [0.90, 0.99, 0.92, 0.99, 0.92, 0.99]
    losses = [0.5, 0.1, 0.5, 0.1, 0.4, 0.1]
    results = [_result(a, b) for a, b in zip(accuracies, losses, strict=True)]
    assert winner(list(zip(fits, results, strict=True))) == 4
    assert len(list(plan_fits(RunConfig(), RunConfig(), 3, is_plan=True))) == 1
