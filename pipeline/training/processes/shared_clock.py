"""The clock of rank 0, which all ranks read together, so that they decide alike.

When a time limit ends the training, when to validate and when to write a checkpoint depend on the
time. Between two readings the time stands still for all ranks; they read it a few times a second.
"""

from __future__ import annotations

import time

from patchline.pipeline.training.processes.ranks import Ranks

_SECONDS = 0.2
"""Between two readings."""


class SharedClock:
    """Seconds from an arbitrary beginning; of a single rank, simply the time."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self._read = time.monotonic()
        self._step = self._next_step = 0
        self._start = self._read

    @property
    def now(self) -> float:
        """The time; with several ranks, as last read."""
        return time.monotonic() if self._ranks.size == 1 else self._read

    @property
    def elapsed(self) -> float:
        """Seconds since the first step, including earlier attempts."""
        return self.now - self._start

    def start(self, step: int, elapsed_seconds: float) -> None:
        """Read it, because an attempt begins at a step, after the seconds of earlier ones."""
        self.restart(step)
        self._start = self.now - elapsed_seconds

    def read(self) -> float:
        """Read it, on all ranks together, and return the seconds since the last reading."""
        before = self._read
        [self._read] = self._ranks.numbers_of_first(time.monotonic())
        return self._read - before

    def read_after(self, step: int) -> float:
        """Read it after a step, and decide after how many steps to read it again."""
        took, steps = self.read(), max(1, step - self._step)
        if self._ranks.size > 1:
            each = max(took / steps, 1e-9)
            self._next_step = step + max(1, min(2 * steps, int(_SECONDS / each)))
        self._step = step
        return took

    def is_due(self, step: int) -> bool:
        """Return whether to read it after a step; all ranks know it without a word."""
        return step >= self._next_step

    def restart(self, step: int) -> None:
        """Read it, on all ranks together, because training begins at a step."""
        self.read()
        self._step = self._next_step = step
