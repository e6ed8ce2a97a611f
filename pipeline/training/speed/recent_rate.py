"""The current rate of a training run, for its progress line."""

from __future__ import annotations

from collections import deque

_WINDOW_SECONDS = 10.0
_APART_SECONDS = 0.2


class RecentRate:
    """Images per second over the last ten seconds of training steps."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, images: int) -> float:
        """Return the current rate; 0 before there is one.

        Args:
            seconds: of training steps so far.
            images: trained on so far.
        """
        marks = self._marks
        if marks and seconds < marks[-1][0]:  # training went back to an earlier step
            marks.clear()
        while len(marks) > 1 and seconds - marks[1][0] >= _WINDOW_SECONDS:
            marks.popleft()
        if not marks:
            marks.append((seconds, images))
            return images / seconds if seconds > 0 else 0.0
        since, before = marks[0]
        rate = (images - before) / (seconds - since) if seconds > since else 0.0
        if seconds - marks[-1][0] >= _APART_SECONDS:
            marks.append((seconds, images))
        return rate
