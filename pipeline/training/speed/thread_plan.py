"""How many torch threads a training run on a CPU uses: fewer while other programs need the cores.

The threads of an operation wait for each other. Where other programs use the cores, one of them
waits for a core most of the time, and all others wait for it: then fewer threads are several times
faster. So the number is looked at again at checkpoints, by a short measurement. The number decides
the last bits of the weights; every change is part of the training's state and of its result, so
that a resumed or repeated training changes at the same steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import psutil
import torch

from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.speed.trial_steps import TrialSettings, trial_steps
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugin_api import ImageSpec

Change = tuple[int, int]
"""(step, threads): the number of threads from a step on."""
Trial = Callable[[int], Iterator[float]]
"""Takes a number of images; the iterator does a step with each `next` and yields its seconds."""

BUSY_CORES = 0.5
"""Cores used by other programs from which fewer threads may be faster."""
WORTH_CHANGING = 1.15
"""How many times faster another number has to be."""
_FALLEN = 0.6
"""Share of the best rate so far below which the number is measured again."""
_FEWEST_SECONDS = 4.0
"""Shortest time that a rate and the use of the cores are averaged over."""
_MEASURED_SECONDS, _STEP_SECONDS = 1.5, 0.1
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 20
_FEWEST_IMAGES = 8


class ThreadPlan:
    """The number of threads of one training.

    Args:
        config: resolved; a number that is set is never changed, except as recorded.
        device: only a CPU has threads to choose.
        trial: does steps like those of the training.
        alone: whether no other process trains with this one.
        own_threads: returns the part of a machine's threads that this process has; one that resumes
            what fewer processes have begun has a part of the threads that they have chosen.
        busy_cores: returns how many CPU cores other programs have used since the last call.
        events: gets a note on every change.
    """

    def __init__(
        self,
        config: RunConfig,
        device: torch.device,
        trial: Trial,
        events: EventWriter,
        *,
        alone: bool,
        own_threads: Callable[[int], int | None] = lambda threads: threads,
        busy_cores: Callable[[], float] | None = None,
    ) -> None:
        self._first = self._current = torch.get_num_threads()
        self._trial, self._events = trial, events
        is_free = alone and device.type == "cpu" and not threads_are_set(config.training)
        self._own_threads = own_threads
        self._may_change = is_free and self._first > 1
        self._batch_size = config.training.batch_size
        self._busy_cores = busy_cores or OtherPrograms().cores
        self._last_measurement = (0.0, 0)
        self._best_rate = 0.0
        self._kept: tuple[float, float] | None = None

    def before_step(self, state: TrainState) -> None:
        """Use the number of threads that is in force at the next step."""
        of_machine = in_force(state.thread_changes, state.step, 0)
        threads = (self._own_threads(of_machine) if of_machine else None) or self._first
        if threads != self._current:
            torch.set_num_threads(threads)
            self._current = threads

    def adapt(self, state: TrainState) -> None:
        """Measure again if the machine is busy, has become less busy, or training slowed down."""
        if not self._may_change:
            return
        seconds = state.training_seconds - self._last_measurement[0]
        images = state.sums.total_images - self._last_measurement[1]
        if 0 <= seconds < _FEWEST_SECONDS:
            return
        self._last_measurement = (state.training_seconds, state.sums.total_images)
        busy_cores = self._busy_cores()
        if seconds <= 0 or images <= 0:  # training went back to an earlier step
            return
        rate = images / seconds
        if self._kept is not None and self._kept[0] == 0:
            self._kept = (rate, self._kept[1])
        if self._is_worth_measuring(rate, busy_cores):
            self._measure(state, rate, busy_cores)
        self._best_rate = max(self._best_rate, rate)

    def _is_worth_measuring(self, rate: float, busy_cores: float) -> bool:
        if self._kept is not None:  # the last measurement stands while little has changed
            kept_rate, kept_cores = self._kept
            return rate < _FALLEN * kept_rate or abs(busy_cores - kept_cores) > BUSY_CORES
        return busy_cores > BUSY_CORES or rate < _FALLEN * self._best_rate

    def _measure(self, state: TrainState, rate: float, busy_cores: float) -> None:
        images = max(_FEWEST_IMAGES, min(self._batch_size, int(rate * _STEP_SECONDS)))
        rates = measured_rates(self._trial, numbers_of_threads(self._first), images)
        fastest = max(rates, key=lambda number: rates[number])
        self._kept, self._best_rate = (rate, busy_cores), 0.0
        if rates[fastest] < WORTH_CHANGING * rates[self._current]:
            return
        state.thread_changes.append((state.step, fastest))
        self._events.write(
            "note",
            message=f"training with {fastest} thread{'' if fastest == 1 else 's'} instead of "
            f"{self._current} from step {state.step} on: measured {rates[fastest]:,.0f} images/s "
            f"against {rates[self._current]:,.0f}, while other programs use {busy_cores:.1f} "
            "CPU cores",
        )
        self._kept = (0.0, busy_cores)  # the next look tells the rate


def threads_are_set(training: TrainingConfig) -> bool:
    """Return whether the user has set the number of threads."""
    return training.threads is not None or "OMP_NUM_THREADS" in os.environ


def in_force(changes: list[Change], step: int, first: int) -> int:
    """Return the number of threads at a step.

    Args:
        changes: rising by their steps.
        step: counted from 0.
        first: the number before all changes.
    """
    return next((threads for start, threads in reversed(changes) if start <= step), first)


def numbers_of_threads(most: int) -> list[int]:
    """Return the numbers to compare: all threads, half of them, and so on down to one."""
    return [most >> halvings for halvings in range(most.bit_length())]


def measured_rates(
    trial: Trial,
    numbers: list[int],
    images: int,
    seconds: float = _MEASURED_SECONDS,
    fewest_rounds: int = _FEWEST_ROUNDS,
) -> dict[int, float]:
    """Return the images per second with each number of threads; torch keeps its number.

    The numbers take turns, and the mean counts: on a busy machine, the fastest step only says that
    the other programs were waiting.

    Args:
        trial: does the steps.
        numbers: to compare.
        images: of a step.
        seconds: how long this should take.
        fewest_rounds: always done.
    """
    before = torch.get_num_threads()
    taken = dict.fromkeys(numbers, 0.0)
    try:
        with torch.random.fork_rng():
            steps = trial(images)
            next(steps)  # warms up caches
            began, rounds = time.monotonic(), 0
            while rounds < fewest_rounds or (
                rounds < _MOST_ROUNDS and time.monotonic() - began < seconds
            ):
                for number in numbers:
                    torch.set_num_threads(number)
                    taken[number] += next(steps)
                rounds += 1
    finally:
        torch.set_num_threads(before)
    return {number: rounds * images / max(taken[number], 1e-9) for number in numbers}


def trial_of(config: RunConfig, image: ImageSpec, num_classes: int, precision: str) -> Trial:
    """Return steps of a model like that of a training run, with other weights and random images."""
    plain = config.model_copy(update={"augmentation": PluginChoice(name="none")})

    def steps(images: int) -> Iterator[float]:
        model = build_model(config.model, image, num_classes)
        return trial_steps(TrialSettings(plain, image, num_classes, precision), model, images)

    return steps


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
