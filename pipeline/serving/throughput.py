"""How fast images are answered while any wait, from which a full queue tells when to try again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST_RATE = 50.0
"""Images per second, until it is measured."""
_LEAST_RATE = 0.1
_MEASURED_SECONDS = 10.0
"""Of work, after which the rate is that of the time since it was measured last."""


class Throughput:
    """Measures the rate of answers over the time in which there is work; in the event loop alone.

    Args:
        clock: that seconds are measured with.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = _FIRST_RATE
        self._requests = 0
        self._busy_since = 0.0
        self._busy_seconds = 0.0
        self._answered = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time of the block, in which a request waits for its answer."""
        self._pass_time()
        self._requests += 1
        try:
            yield
        finally:
            self._pass_time()
            self._requests -= 1

    def answered(self, images: int) -> None:
        """Count images that were answered."""
        self._answered += images
        self._pass_time()
        if self._busy_seconds > _MEASURED_SECONDS:
            self._rate = max(_LEAST_RATE, self._answered / self._busy_seconds)
            self._busy_seconds, self._answered = 0.0, 0

    def seconds_for(self, images: int) -> float:
        """Return how long so many images probably take."""
        return images / self._rate

    def _pass_time(self) -> None:
        now = self._clock()
        if self._requests:
            self._busy_seconds += now - self._busy_since
        self._busy_since = now
