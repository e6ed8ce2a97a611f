"""Start the workers of later stages early, so that their imports cost no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.launcher import Resources

OnEvent = Callable[[Event], None]
_AHEAD_SECONDS = 15.0
"""Imports take 3 to 6 seconds on an idle machine; this one is busy training."""


@dataclass(frozen=True)
class Worker:
    """The process in which a stage computes, and what it needs."""

    module: str
    """Run as `python -m MODULE`, see `patchline.pipeline.workers`."""
    accelerator: bool = True
    """Whether it computes on the device of the run; otherwise on CPU cores alone."""
    free_gib: float = 3.0
    """Free memory in GiB with which it may be started while another stage computes. It takes 0.4 as
    long as it waits, and the training must not run out of memory because of it."""
    from_start: bool = False
    """Whether it is started as soon as a run begins, before anything else needs memory."""

    @property
    def resources(self) -> Resources:
        """What the launcher of the run reserves for it."""
        return Resources(gpus=None if self.accelerator else 0, memory_gib=self.free_gib)


def prewarm_at_start(workers: Iterable[Worker]) -> None:
    """Start the workers that are needed first."""
    for worker in workers:
        if worker.from_start:
            worker_start.current_launcher().prepare(worker.module, worker.resources)


def prewarm_while_others_compute(workers: Iterable[Worker]) -> None:
    """Start workers for which there is memory."""
    for worker in workers:
        if psutil.virtual_memory().available >= worker.free_gib * 2**30:
            worker_start.current_launcher().prepare(worker.module, worker.resources)


def prewarm_before_the_end(show: OnEvent, workers: Iterable[Worker]) -> OnEvent:
    """Return a function that shows training events and starts the next workers before the end."""
    first: Event | None = None
    following = tuple(workers)

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
                prewarm_while_others_compute(following)

    return see
