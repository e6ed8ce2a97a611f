"""How many steps fit into a time limit: the speed is measured, and the end of the plan moved.

Validations count, too: the limit is over when the last of them has ended.
"""

from __future__ import annotations

import bisect
from typing import Protocol

from patchline.pipeline.training.step_plan import UNKNOWN_END, StepPlan

_REPLANS = 40
"""The end is planned again after this fraction (1/40) of the time limit,"""
_REPLANS_TO_GO = 4
"""or this fraction (1/4) of the remaining steps, so more often near the end."""
_SETTLED_KNOTS, _SETTLED_SPREAD = 4, 1.05
"""The end counts as settled when the last four plans differ by at most 5%."""
_FEWEST_GUESSED = 20
"""Minimum of the first guess: the first step is slow, and few steps would skip the warm-up."""


class ValidationCost(Protocol):
    """Knows how long validations take."""

    def seconds_to_come(self, step: int, more: int, step_seconds: float) -> float:
        """Return the seconds of the validations of the next `more` steps, the last one included."""


class TimePlanner:
    """Plan the end of a run with a time limit from its measured speed.

    Args:
        plan: changed in place.
        limit_seconds: from the first step to the end of the last validation.
        validations: how long they take.
        most_steps: ends the run before the limit; None for no maximum.
    """

    def __init__(
        self,
        plan: StepPlan,
        limit_seconds: float,
        validations: ValidationCost,
        most_steps: int | None = None,
    ) -> None:
        self._most_steps = UNKNOWN_END - 1 if most_steps is None else most_steps
        self.plan = plan
        self.limit_seconds = limit_seconds
        self._validations = validations
        self._mark: tuple[int, float] | None = None
        self._next_replan_seconds = 0.0
        self._next_replan_step = 0

    def restart(self, step: int, training_seconds: float) -> None:
        """Plan again after the next step, because training went back to `step`."""
        self._mark = (step, training_seconds)
        self._next_replan_seconds, self._next_replan_step = 0.0, 0

    @staticmethod
    def opening_plan() -> StepPlan:
        """Return the plan before anything is measured, without an end."""
        return StepPlan([(0, 0.0, UNKNOWN_END)])

    @property
    def has_measured(self) -> bool:
        """Whether the plan is based on more than the first guess."""
        return len(self.plan.knots) > 1

    @property
    def is_settled(self) -> bool:
        """Whether the planned end has stopped jumping, so that it is worth showing."""
        ends = [end for _, _, end in self.plan.knots[-_SETTLED_KNOTS:]]
        return len(ends) == _SETTLED_KNOTS and max(ends) <= _SETTLED_SPREAD * min(ends)

    def before_first_update(self, seconds: float) -> None:
        """Guess the end from the duration of the first gradient, for the first update."""
        most = int(self.limit_seconds / max(seconds, 1e-9))
        self._end_after(0, max(_FEWEST_GUESSED, most))

    def after_step(self, step: int, training_seconds: float, elapsed_seconds: float) -> None:
        """Plan again if it is time to.

        Args:
            step: number of steps done.
            training_seconds: their duration, without validation.
            elapsed_seconds: time since the start of the first step, including everything.
        """
        if self._mark is None:  # the first step also warms up caches, so it is not representative
            self._mark = (step, training_seconds)
            if elapsed_seconds >= self.limit_seconds:
                self.plan.end_after(step, 0)
            return
        if elapsed_seconds < self._next_replan_seconds and step < self._next_replan_step:
            return
        marked_step, marked_seconds = self._mark
        step_seconds = (training_seconds - marked_seconds) / (step - marked_step)
        self._mark = (step, training_seconds)
        left = self.limit_seconds - elapsed_seconds
        remaining = self._steps_within(left, step, step_seconds)
        remaining = self._end_after(step, remaining)
        self._next_replan_step = step + max(1, remaining // _REPLANS_TO_GO)
        self._next_replan_seconds = elapsed_seconds + self.limit_seconds / _REPLANS

    def _end_after(self, step: int, remaining: int) -> int:
        """Plan the end, and return how many steps remain."""
        remaining = max(0, min(remaining, self._most_steps - step))
        self.plan.end_after(step, remaining)
        return remaining

    def _steps_within(self, seconds: float, step: int, step_seconds: float) -> int:
        """Return how many more steps fit, including the validations."""

        def cost(more: int) -> float:
            validations = self._validations.seconds_to_come(step, more, step_seconds)
            return more * step_seconds + validations

        most = max(0, int(seconds / max(step_seconds, 1e-9)))
        return max(0, bisect.bisect_right(range(most + 1), seconds, key=cost) - 1)
