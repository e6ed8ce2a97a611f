"""How far the training has come at each step, planned by steps or by time.

A plan is a list of knots (step, progress); between two knots progress rises linearly. A run
limited by epochs has two knots. A run limited by time moves its end while it measures how fast it
is, and leaves a knot at each such moment. The knots are written into the resolved config, and a
run with the same knots does the same steps with the same learning rates: that is its replay.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

Knots = tuple[tuple[int, float], ...]

_MEASURED_STEPS = 5
"""Steps at progress 0 that only measure the speed; the first ones only warm up caches."""
_WARM_UP_STEPS = 2
_REPLANS = 40
"""Shares of the time limit after which the end is planned again."""


class StepPlan:
    """Progress by step, from 0 to 1."""

    def __init__(self, knots: Sequence[tuple[int, float]]) -> None:
        self.knots: list[tuple[int, float]] = [(int(step), float(p)) for step, p in knots]

    @classmethod
    def of_steps(cls, steps: int) -> StepPlan:
        """Return the plan of a run that does a known number of steps."""
        return cls([(0, 0.0), (steps, 1.0)])

    @property
    def last_step(self) -> int:
        """The number of steps after which the training ends."""
        return self.knots[-1][0]

    def progress(self, step: int) -> float:
        """Return the progress when `step` steps have been done."""
        after = bisect.bisect_right(self.knots, (step, 2.0))
        if after == len(self.knots):
            return self.knots[-1][1]
        (left, low), (right, high) = self.knots[after - 1], self.knots[after]
        return low + (high - low) * (step - left) / (right - left)

    def end_after(self, step: int, remaining: int) -> None:
        """Leave a knot at `step` and plan the end `remaining` steps later."""
        here = (step, self.progress(step))
        self.knots = [knot for knot in self.knots[:-1] if knot[0] < step]
        self.knots += [here, (step + max(1, remaining), 1.0)]


class TimePlanner:
    """Plan the end of a run with a time limit from the speed that is measured.

    Args:
        plan: the plan to move; it is changed in place.
        limit_seconds: from the first step to the end of the last validation.
        steps_per_epoch: validations come once an epoch and at the end.
        validation_steps: what a validation costs in training steps, until it has been measured.
    """

    def __init__(
        self, plan: StepPlan, limit_seconds: float, steps_per_epoch: int, validation_steps: float
    ) -> None:
        self.plan = plan
        self.limit_seconds = limit_seconds
        self.steps_per_epoch = steps_per_epoch
        self._calls = 0
        self._marks = (0, 0.0)
        self._next_replan_seconds = 0.0
        self._validation_steps = validation_steps
        self.validation_seconds: float | None = None
        """How long the last validation took."""

    @staticmethod
    def opening_plan() -> StepPlan:
        """Return the plan before anything was measured: a few steps at progress 0."""
        return StepPlan([(0, 0.0), (_MEASURED_STEPS, 0.0), (_MEASURED_STEPS + 1, 1.0)])

    def after_step(self, step: int, training_seconds: float, elapsed_seconds: float) -> None:
        """Plan again, if it is time to.

        Args:
            step: steps done.
            training_seconds: time spent in them, validation excluded.
            elapsed_seconds: time since the first step began, everything included.
        """
        self._calls += 1
        if self._calls == _WARM_UP_STEPS:
            self._marks = (step, training_seconds)
        if self._calls < _MEASURED_STEPS or elapsed_seconds < self._next_replan_seconds:
            return
        first_step, first_seconds = self._marks
        step_seconds = (training_seconds - first_seconds) / max(1, step - first_step)
        validation = self.validation_seconds or self._validation_steps * step_seconds
        per_step = step_seconds + validation / self.steps_per_epoch
        left = self.limit_seconds - elapsed_seconds - validation
        self.plan.end_after(step, int(left / max(per_step, 1e-9)))
        self._next_replan_seconds = elapsed_seconds + self.limit_seconds / _REPLANS
