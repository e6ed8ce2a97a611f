"""How many torch threads a run uses on a CPU: fewer while other programs need the cores.

The threads of an operation wait for each other. Where other programs use the cores, one of them
waits for a core most of the time, and all others wait for it: then fewer threads are several times
faster. The number decides the last bits of the weights, so it is chosen once and recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import psutil
import torch

from patchline.pipeline.training.config import TrainingConfig

Trial = Callable[[int], Iterator[float]]
"""Takes a number of images; the iterator does a step with each `next` and yields its seconds."""

WORTH_CHANGING = 1.15
"""How many times faster another number has to be."""
_MOST_ROUNDS = 20


def threads_are_set(training: TrainingConfig) -> bool:
    """Return whether the user has set the number of threads."""
    return training.threads is not None or "OMP_NUM_THREADS" in os.environ


def numbers_of_threads(most: int) -> list[int]:
    """Return the numbers to compare: all threads, half of them, and so on down to one."""
    return [most >> halvings for halvings in range(most.bit_length())]


def measured_rates(
    trial: Trial,
    numbers: list[int],
    images: int,
    seconds: float,
) -> dict[int, float]:
    """Return the images per second with each number of threads; torch keeps its number.

    The numbers take turns, and the mean counts: on a busy machine, the fastest step only says that
    the other programs were waiting.

    Args:
        trial: does the steps.
        numbers: to compare.
        images: of a step.
        seconds: how long this should take; each number has a step at least.
    """
    before = torch.get_num_threads()
    taken = dict.fromkeys(numbers, 0.0)
    try:
        with torch.random.fork_rng():
            steps = trial(images)
            next(steps)  # warms up caches
            began, rounds = time.monotonic(), 0
            while not rounds or (rounds < _MOST_ROUNDS and time.monotonic() - began < seconds):
                for number in numbers:
                    torch.set_num_threads(number)
                    taken[number] += next(steps)
                rounds += 1
    finally:
        torch.set_num_threads(before)
    return {number: rounds * images / max(taken[number], 1e-9) for number in numbers}


class OtherPrograms:
    """How many CPU cores everything except a process and its children uses.

    Args:
        process: by default this one.
    """

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process or psutil.Process()
        self._last = self.sample()

    def cores(self) -> float:
        """Return the mean number of cores since the last call."""
        before, self._last = self._last, self.sample()
        seconds, others = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, others / seconds) if seconds > 0 else 0.0

    def sample(self) -> tuple[float, float]:
        """Return the time, and the CPU seconds of other programs since the machine started."""
        own = sum(map(_cpu_seconds, [self._process, *self._process.children(recursive=True)]))
        return time.monotonic(), busy_seconds() - own


def busy_seconds() -> float:
    """Return the CPU seconds of all programs since the machine started."""
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - waiting - counted_twice)


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return float(times.user + times.system)
