"""Plans of steps and validations: from 0 to 1, against a clock, and the same in a replay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.training import run_length
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.run_length import EachEpoch, Recorded, Timed, TimePlanner
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.worker_process import JOB_FILE
from tests.pipeline.training.trained_jobs import Make, trained

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
    """However often the end is moved, every step that is done keeps its progress exactly.

    Except that of the end itself, if it is moved when it has been reached.
    """
    plan, now = StepPlan.of_steps(steps), 0
    for share, remaining in moves:
        now += int(share * (plan.last_step - now))
        past = range(now + (now < plan.last_step))
        before = [plan.progress(done) for done in past]
        plan.end_after(now, remaining)
        assert plan.last_step == now + remaining
        assert [plan.progress(done) for done in past] == before
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


@pytest.mark.parametrize("most_steps", [1, 5_000])
def test_a_timed_run_does_no_more_than_its_maximum_of_steps(most_steps: int) -> None:
    """Where there is less time, the limit ends it; either way the progress ends at 1."""
    run = _TimedRun(lambda _: 0.1, most_steps=most_steps)
    assert run.steps == min(most_steps, run.steps)
    assert run.steps == most_steps or run.clock > 0.9 * LIMIT
    assert run.plan.progress(run.steps) == 1.0


def test_a_slow_validation_uses_a_part_of_the_split() -> None:
    """7,443 images at 80 a second do not fit into 90 s: a sixth of 9 s is left for each."""
    plan = Timed(90.0, steps_per_epoch=300, images=7443, batch_size=128)
    plan.measured(64, 64 / 80)
    assert plan.images(10, last=False) == plan.images(10, last=True) == 120
    plan.validated(120, 1.5, 20.0)
    plan.measured(64, 0.1)  # faster than before: what is compared stays
    assert plan.images(20, last=False) == plan.compared() == 120
    assert plan.images(20, last=True) == 120


def test_a_run_of_less_than_an_epoch_is_validated_too() -> None:
    """Each fifth of the limit there is one, as long as all stay below a tenth."""
    plan, clock, due = Timed(100.0, 10_000, 100_000, 100), 0.0, []
    for step in range(1, 1000):
        clock += 0.1
        if plan.is_due(step, clock):
            if not plan.is_measured:
                plan.measured(64, 0.064)
            images = plan.images(step, last=False)
            clock += images / 1000
            plan.validated(images, images / 1000, clock)
            due.append(round(clock))
    assert len(due) == 4
    assert due[0] == 22


def test_what_was_validated_before_an_interruption_counts() -> None:
    """Part, speed and time spent come from the history."""
    plan = Timed(100.0, 10, 3000, 100)
    plan.measured(100, 0.1)
    plan.restore([], 0.0, 7.0)
    assert plan.is_measured
    assert not plan.is_due(9, 8.0)


def test_a_record_decides_a_replay() -> None:
    """The same steps with the same numbers of images, whatever the clock says."""
    plan = Recorded([(3, 100), (7, 100), (9, 800)], images=800)
    assert [step for step in range(12) if plan.is_due(step, 1e9)] == [3, 7, 9]
    assert [plan.images(step, last=False) for step in (3, 9)] == [100, 800]
    assert plan.compared() == 100
    assert [step for step in range(9) if EachEpoch(4, 10).is_due(step, 0.0)] == [0, 4, 8]


def test_a_part_of_the_split_depends_on_the_images_alone(make: Make) -> None:
    """The validation split is in the order of the files' digests."""
    job = make()
    data, rows = open_data(job), manifests.usable(manifests.load(job.manifest_file))
    digests = list(rows["sha256"][data.validation_rows])
    assert digests == sorted(digests)
    assert np.array_equal(
        np.sort(data.validation_rows), np.flatnonzero(rows["split"] == "validation")
    )


def test_the_best_is_chosen_by_images_that_all_validations_share(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last validation sees the whole split, and is compared on the part of the others."""
    monkeypatch.setattr(run_length, "_FEWEST_IMAGES", 4)
    steps = ((2, 5), (4, 5), (6, 21))
    job = make(record={"step_plan": [[0, 0.0, 6]], "validation_plan": [list(s) for s in steps]})
    result = trained(job)
    assert result.validation_plan == steps
    *early, last = result.history
    assert [record.compared_accuracy for record in early] == [None, None]
    assert last.compared_accuracy is not None
    assert last.compared_accuracy * 5 == pytest.approx(round(last.compared_accuracy * 5))


def test_the_training_gets_its_part_of_the_limit(make: Make) -> None:
    """An interrupted attempt keeps the part that it had; epochs alone have none."""
    job = make("limited", training={"epochs": None, "time_limit": "10m"})
    early, late = (launching.with_time_left(job.config, share) for share in (0.25, 0.1))
    assert (early.training.time_limit, late.training.time_limit) == ("150.000s", "60.000s")
    job.model_copy(update={"config": early}).to_file(job.folder / JOB_FILE)
    assert launching.with_time_left(job.config, 0.1, job.folder) == early
    assert launching.with_time_left(job.config, 1.0) == job.config
    assert job.limited_to(90).limit_seconds == 90
    assert job.limited_to(-5).limit_seconds == 0.001
    epochs = make("epochs")
    assert launching.with_time_left(epochs.config, 0.1) == epochs.config
    assert epochs.limited_to(90) == epochs
