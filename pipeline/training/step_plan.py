"""Plan the progress of the training at each step, by a number of steps or by time.

A plan is a list of knots (step, progress, end): from that step, progress rises linearly from that
value to 1 at the end. A run limited by epochs has one knot. A run limited by time moves the end and
adds a knot each time (`run_length.py`). The knots are saved in the resolved config; a run with the
same knots reproduces the same steps with exactly the same progress.

The progress of a step is that of its middle, so the first step is after the start and the last step
before the end, where the learning rate is 0.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

Knot = tuple[int, float, int]

UNKNOWN_END = 10**9
"""The end of a plan that nothing has been measured for."""


class StepPlan:
    """Progress by step, from 0 to 1."""

    def __init__(self, knots: Sequence[Knot]) -> None:
        self.knots: list[Knot] = [(int(step), float(p), int(end)) for step, p, end in knots]

    @classmethod
    def of_steps(cls, steps: int) -> StepPlan:
        """Return the plan of a run with a known number of steps."""
        return cls([(0, 0.0, steps)])

    @property
    def last_step(self) -> int:
        """The number of steps after which the training ends."""
        return self.knots[-1][2]

    @property
    def is_known(self) -> bool:
        """Whether the end has been planned."""
        return self.last_step < UNKNOWN_END

    def progress(self, step: int) -> float:
        """Return the progress after `step` steps."""
        start, low, end = self.knots[self._in_force(step)]
        if step >= end:
            return 1.0
        return low + (1.0 - low) * (step - start) / (end - start)

    def _in_force(self, step: int) -> int:
        return bisect.bisect_right(self.knots, step, key=lambda knot: knot[0]) - 1

    def progress_of(self, step: int) -> float:
        """Return the progress in the middle of a step, counted from 0: never 0 and never 1.

        Later knots do not change it.
        """
        start, low, end = self.knots[self._in_force(step)]
        return low + (1.0 - low) * (step + 0.5 - start) / max(1, end - start)

    def end_after(self, step: int, remaining: int) -> None:
        """Add a knot at `step` and plan the end `remaining` steps later; 0 ends it here."""
        here = self.progress(step)
        if here >= 1.0 and remaining and step:  # there is more time than planned
            here = self.progress_of(step - 1)
        self.knots = [knot for knot in self.knots if knot[0] < step]
        self.knots.append((step, here, step + max(0, remaining)))
