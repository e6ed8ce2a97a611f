"""Prepare the worker of the next stage while this one works, so that nobody waits for imports."""

from __future__ import annotations

import psutil

from pipeline import worker_start
from pipeline.event_log import Event

_AHEAD_SECONDS = 15.0
"""Imports take 3 to 6 of them on an idle machine; this one is busy training."""
_ROOM_BYTES = 3 * 2**30
"""The two take 0.8 GB; a training must not end for want of it."""


def training() -> None:
    """Prepare the training process; it also tells what this machine has, see `machine.seen`."""
    worker_start.prepare("pipeline.training")


class AfterTraining:
    """Prepares the workers after a training shortly before its end; earlier costs memory."""

    def __init__(self) -> None:
        self._first: Event | None = None

    def see(self, event: Event) -> None:
        """Look at an event of the training."""
        if event["kind"] != "progress":
            return
        if self._first is None:
            self._first = event
        steps = event["done"] - self._first["done"]
        if steps > 0:
            seconds = (event["time"] - self._first["time"]) / steps
            soon = seconds * (event["total"] - event["done"]) <= _AHEAD_SECONDS
            if soon and psutil.virtual_memory().available >= _ROOM_BYTES:
                worker_start.prepare("pipeline.evaluation")
                worker_start.prepare("pipeline.registry")
