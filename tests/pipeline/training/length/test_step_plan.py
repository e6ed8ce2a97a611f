"""Step plans: progress from 0 to 1, planning against a clock, and replay from the knots."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patchline.pipeline.training.length.step_plan import StepPlan, TimePlanner
from patchline.pipeline.training.length.validation_plan import Timed

LIMIT = 100.0
IMAGES = 10_000
"""Of the validation split."""
Speed = Callable[[float], float]
"""Seconds that a step takes, by the share of the time limit that has passed."""


class _TimedRun:
    """A training with a time limit on a simulated clock, in the order of the real loop."""

    def __init__(
        self,
        speed: Speed,
        steps_per_epoch: int = 40,
        validation: float = 0.5,
        most_steps: int | None = None,
    ) -> None:
        self.plan = TimePlanner.opening_plan()
        validations = Timed(LIMIT, steps_per_epoch, IMAGES, batch_size=32)
        planner = TimePlanner(self.plan, LIMIT, validations, most_steps)
        self.validated = 0.0
        self.progress: list[float] = []
        self.progress_of: list[float] = []
        self.clock, training, step = 0.0, 0.0, 0
        while step < self.plan.last_step:
            self.progress.append(self.plan.progress(step))
            seconds = speed(self.clock / LIMIT)
            if step == 0:
                planner.before_first_update(seconds)
            self.progress_of.append(self.plan.progress_of(step))
            training += seconds
            self.clock += seconds
            step += 1
            planner.after_step(step, training, self.clock)
            last = step >= self.plan.last_step
            if last or validations.is_due(step, self.clock):
                if not validations.is_measured:
                    validations.measured(IMAGES, validation or 1e-9)
                images = validations.images(step, last=last)
                seconds = images * validation / IMAGES
                self.clock += seconds
                self.validated += seconds
                validations.validated(images, seconds, self.clock)
            assert self.clock < 2 * LIMIT + 8 * seconds, "the end is put off for ever"
        self.steps = step


speeds = st.sampled_from([0.02, 0.05, 0.3, 1.0])
"""Seconds of a step; more than a fortieth of the limit has a test of its own."""
epochs = st.integers(1, 300)
validations = st.floats(0.0, 300.0)
"""Seconds of a validation of the whole split: up to three times the limit."""
timed = settings(deadline=None, max_examples=40, derandomize=True)


@given(steps=st.integers(1, 10_000))
def test_a_plan_of_steps_goes_evenly_from_0_to_1(steps: int) -> None:
    """Progress is the share of the steps that are done; each step has that of its middle.

    So no step is at the start or the end, where the learning rate is 0; one step is halfway.
    """
    plan = StepPlan.of_steps(steps)
    assert plan.last_step == steps
    assert (plan.progress(0), plan.progress(steps)) == (0.0, 1.0)
    assert plan.progress(steps // 2) == pytest.approx((steps // 2) / steps)
    assert plan.progress_of(0) == pytest.approx(0.5 / steps)
    assert plan.progress_of(steps - 1) == pytest.approx(1 - 0.5 / steps)


@given(steps=st.integers(10, 500), moves=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 300))))
def test_progress_never_falls_and_keeps_the_past(
    steps: int, moves: list[tuple[float, int]]
) -> None:
    """However often the end is moved, every step that is done keeps its progress exactly."""
    plan, now = StepPlan.of_steps(steps), 0
    for share, remaining in moves:
        now += int(share * (plan.last_step - now))
        before = [plan.progress(done) for done in range(now + 1)]
        plan.end_after(now, remaining)
        assert plan.last_step == now + remaining
        assert [plan.progress(done) for done in range(now + 1)] == before
    progress = [plan.progress(step) for step in range(plan.last_step + 1)]
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0.0, 1.0)


@given(
    speed=speeds,
    drift=st.floats(0.3, 2.5),
    steps_per_epoch=epochs,
    validation=validations,
)
@example(speed=0.05, drift=2.0, steps_per_epoch=40, validation=0.5)
@timed
def test_a_timed_run_goes_from_0_to_1_near_its_limit_and_replays(
    speed: float, drift: float, steps_per_epoch: int, validation: float
) -> None:
    """Also on a machine that becomes up to three times faster or slower until the limit.

    It misses the limit by a step or 3%; the recorded knots give every step the same progress.
    """
    run = _TimedRun(lambda share: speed * drift**share, steps_per_epoch, validation)
    assert run.progress == sorted(run.progress)
    assert run.progress[0] == 0.0
    assert run.progress[-1] > 0.9
    assert run.plan.progress(run.steps) == 1.0
    assert run.progress_of == sorted(run.progress_of)
    assert 1e-6 < run.progress_of[0] <= 0.5 / 20
    assert run.progress_of[-1] < 1.0
    assert 0.9 * LIMIT <= run.clock <= LIMIT * 1.03 + speed * max(1.0, drift)
    replay = StepPlan(run.plan.knots)
    assert replay.last_step == run.steps
    assert [replay.progress(step) for step in range(run.steps)] == run.progress
    assert [replay.progress_of(step) for step in range(run.steps)] == run.progress_of


@given(speed=speeds, steps_per_epoch=epochs, validation=validations)
@example(speed=0.05, steps_per_epoch=158, validation=2.0)
@timed
def test_a_steady_run_uses_its_time_and_no_more(
    speed: float, steps_per_epoch: int, validation: float
) -> None:
    """At a steady speed the run ends by its limit, the last validation included, and not early."""
    run = _TimedRun(lambda _: speed, steps_per_epoch, validation)
    assert 0.9 * LIMIT <= run.clock <= LIMIT + 1e-6
    assert run.validated <= 0.1 * LIMIT + 64 * validation / IMAGES


@pytest.mark.parametrize("seconds", [2.6, 150.0])
def test_slow_steps_end_too(seconds: float) -> None:
    """Steps that are long beside the limit end when the next one would not fit any more."""
    run = _TimedRun(lambda _: seconds)
    measured = 6  # the fewest steps that a run does
    assert run.steps <= max(measured, LIMIT / seconds)
    assert run.plan.progress(run.steps) == 1.0
    assert run.progress_of[0] >= 0.01, "the only steps that there are have to count"


def test_a_slow_beginning_is_not_taken_for_the_speed() -> None:
    """The first steps, which warm up caches, do not end the run early."""
    seconds = iter([0.05, 20.0, 5.0])  # the first is asked for the guess
    run = _TimedRun(lambda _: next(seconds, 0.05))
    assert 0.9 * LIMIT <= run.clock <= LIMIT + 1e-6
    assert run.steps > 1000


@pytest.mark.parametrize("most_steps", [1, 5_000])
def test_a_timed_run_does_no_more_than_its_maximum_of_steps(most_steps: int) -> None:
    """Where there is less time, the limit ends it; either way the progress ends at 1."""
    run = _TimedRun(lambda _: 0.1, most_steps=most_steps)
    assert run.steps == min(most_steps, run.steps)
    assert run.steps == most_steps or run.clock > 0.9 * LIMIT
    assert run.plan.progress(run.steps) == 1.0
