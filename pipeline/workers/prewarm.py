"""Start the worker of the next stage early, so that its imports cost no time."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from pipeline.workers import worker_start
from pipeline.workers.event_log import Event

OnEvent = Callable[[Event], None]
_AHEAD_SECONDS = 15.0
"""Imports take 3 to 6 seconds on an idle machine; this one is busy training."""
_ROOM_BYTES = 3 * 2**30
"""The two workers take 0.8 GB; training must not run out of memory because of them."""


def training() -> None:
    """Start the training process; it also describes this machine, see `machine.seen`."""
    worker_start.prepare("pipeline.training")


def planning() -> None:
    """Start the process that measures training speeds, for a run with a preset."""
    worker_start.prepare("pipeline.planning")


def evaluation_and_packaging() -> None:
    """Start the processes of the stages after training, if there is memory for them."""
    if psutil.virtual_memory().available >= _ROOM_BYTES:
        worker_start.prepare("pipeline.evaluation")
        worker_start.prepare("pipeline.packaging")


def following_stages(show: OnEvent) -> OnEvent:
    """Return a function that shows training events and starts the next workers before the end."""
    first: Event | None = None

    def see(event: Event) -> None:
        nonlocal first
        show(event)
        if event["kind"] != "progress":
            return
        first = first or event
        steps = event["done"] - first["done"]
        if steps > 0:
            seconds = (event["time"] - first["time"]) / steps
            soon = seconds * (event["total"] - event["done"]) <= _AHEAD_SECONDS
            if soon:
                evaluation_and_packaging()

    return see
