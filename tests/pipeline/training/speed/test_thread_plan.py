"""The number of torch threads follows what other programs leave, and every change is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from patchline.pipeline.config import RunConfig
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.speed.recent_rate import RecentRate
from patchline.pipeline.training.speed.thread_plan import (
    OtherPrograms,
    ThreadPlan,
    busy_seconds,
    in_force,
    measured_rates,
    numbers_of_threads,
)
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob

CPU = torch.device("cpu")
NOTHING: Any = None
"""Model, average, optimizer and steps, which the number of threads does not depend on."""
IDLE, BUSY = {4: 0.1, 2: 0.16, 1: 0.3}, {4: 0.8, 2: 0.4, 1: 0.3}
"""Seconds of a step by the number of threads, on four cores."""


class Steps:
    """Steps whose duration depends on the number of threads, as on a machine with other programs.

    They are not slept through.
    """

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.images = seconds, list[int]()

    def __call__(self, images: int) -> Iterator[float]:
        self.images.append(images)
        while True:
            yield self.seconds[torch.get_num_threads()]


class Machine:
    """A training on a machine of four cores, whose other programs a test starts and ends."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None) -> None:
        torch.set_num_threads(4)
        self.steps, self.busy_cores, self.events = Steps(IDLE), 0.0, folder / "events.jsonl"
        self.state = TrainState(NOTHING, NOTHING, NOTHING, NOTHING)
        self.plan = ThreadPlan(
            RunConfig.model_validate({"training": config or {}}),
            CPU,
            self.steps,
            EventWriter(self.events),
            alone=True,
            busy_cores=lambda: self.busy_cores,
        )

    def train(self, seconds: float = 15.0) -> int:
        """Train until the next checkpoint, and return the number of threads after it."""
        self.plan.before_step(self.state)
        self.state.step += 100
        self.state.training_seconds += seconds
        step_seconds = self.steps.seconds[torch.get_num_threads()]
        self.state.sums.total_images += round(128 * seconds / step_seconds)
        self.plan.adapt(self.state)
        self.plan.before_step(self.state)
        return torch.get_num_threads()


def test_one_of_two_processes_has_half_of_the_threads_that_a_single_one_chose(
    machine: Machine,
) -> None:
    """A run may be resumed with more processes, which share the cores of the machine."""
    machine.state.thread_changes = [(100, 2)]
    torch.set_num_threads(2)
    half = ThreadPlan(
        RunConfig(),
        CPU,
        machine.steps,
        EventWriter(machine.events),
        alone=False,
        own_threads=lambda threads: threads // 2,
    )
    for step, threads in ((0, 2), (100, 1)):
        machine.state.step = step
        half.before_step(machine.state)
        assert torch.get_num_threads() == threads


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return an idle machine whose user has set nothing."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    return Machine(tmp_path)


def test_on_an_idle_machine_nothing_is_measured(machine: Machine) -> None:
    """Torch's own number stays, and no time is spent."""
    assert [machine.train() for _ in range(5)] == [4] * 5
    assert (machine.steps.images, machine.state.thread_changes) == ([], [])


def test_a_busy_machine_trains_with_fewer_threads_until_it_is_idle_again(machine: Machine) -> None:
    """Each change is measured once, told, and recorded with its step."""
    machine.train()
    machine.steps.seconds, machine.busy_cores = BUSY, 3.0
    assert [machine.train() for _ in range(4)] == [1] * 4
    assert len(machine.steps.images) == 1
    machine.steps.seconds, machine.busy_cores = IDLE, 0.1
    assert [machine.train() for _ in range(4)] == [4] * 4
    assert len(machine.steps.images) == 2
    assert machine.state.thread_changes == [(200, 1), (600, 4)]
    notes = [event["message"] for event in read_events(machine.events)]
    assert "training with 1 thread instead of 4 from step 200 on" in notes[0]
    assert "while other programs use 3.0 CPU cores" in notes[0]
    assert "4 threads instead of 1" in notes[1]


def test_a_rate_that_falls_is_measured_although_no_other_program_is_seen(machine: Machine) -> None:
    """A container does not see who else uses the cores of its machine."""
    machine.train()
    machine.steps.seconds = BUSY
    assert machine.train() == 1


def test_a_slower_phase_is_measured_once(machine: Machine) -> None:
    """Larger images are slower with any number of threads, so nothing changes."""
    machine.train()
    machine.steps.seconds = {number: 3 * each for number, each in IDLE.items()}
    assert [machine.train() for _ in range(4)] == [4] * 4
    assert len(machine.steps.images) == 1


def test_other_programs_that_cost_little_change_nothing(machine: Machine) -> None:
    """Fewer threads have to be clearly faster."""
    machine.busy_cores = 1.0
    machine.steps.seconds = {4: 0.3, 2: 0.28, 1: 0.4}
    assert [machine.train() for _ in range(3)] == [4] * 3
    assert len(machine.steps.images) == 1


@pytest.mark.parametrize("source", ["setting", "environment"])
def test_a_number_that_is_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Neither `training.threads` nor OMP_NUM_THREADS is overruled."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    if source == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    machine = Machine(tmp_path, {"threads": 4} if source == "setting" else {})
    machine.steps.seconds, machine.busy_cores = BUSY, 3.0
    assert (machine.train(), machine.steps.images) == (4, [])


def test_the_mean_counts_and_not_the_fastest_step() -> None:
    """On a busy machine a step is fast now and then, while the other programs wait."""

    def lucky(_: int) -> Iterator[float]:
        for number in range(1000):
            yield 0.1 if torch.get_num_threads() == 1 or number % 7 == 0 else 1.0

    before = torch.get_num_threads()
    rates = measured_rates(lucky, [2, 1], 8, 0.01)
    assert rates[1] == pytest.approx(80)
    assert rates[2] < 40
    assert torch.get_num_threads() == before


def test_the_numbers_compared_are_halved_down_to_one() -> None:
    """Also where the number of cores is no power of two."""
    assert [numbers_of_threads(most) for most in (1, 2, 6, 64)] == [
        [1],
        [2, 1],
        [6, 3, 1],
        [64, 32, 16, 8, 4, 2, 1],
    ]


def test_the_last_change_before_a_step_is_in_force() -> None:
    """Before all changes it is the first number."""
    changes = [(10, 1), (30, 4)]
    steps = (0, 9, 10, 29, 30, 99)
    assert [in_force(changes, step, 2) for step in steps] == [2, 2, 1, 1, 4, 4]


def test_recorded_changes_are_repeated_at_their_steps(make_job: MakeJob, tmp_path: Path) -> None:
    """The result replays to the same weights, and later parts of a run take its last number."""
    seen: list[int] = []
    settings = {"epochs": 2, "threads": 2, "thread_changes": [[2, 1], [5, 2], [6, 1]]}
    job = make_job(tmp_path / "one", training=settings)
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    training.state.model.register_forward_hook(
        lambda module, *_: seen.append(torch.get_num_threads()) if module.training else None
    )
    result = training.run()
    assert seen == [2, 2, 1, 1, 1, 2, *[1] * (result.steps - 6)]
    assert (result.threads, result.last_threads) == (2, 1)
    replay = launching.replayable(job.config, result)
    assert replay.training.thread_changes == ((2, 1), (5, 2), (6, 1))
    again = Training(
        job.model_copy(update={"config": replay, "folder": tmp_path / "two"}),
        EventWriter(tmp_path / "again.jsonl"),
    ).run()
    for name in ("model.safetensors", "model.json"):
        assert (result.best / name).read_bytes() == (again.best / name).read_bytes()


def test_a_resumed_training_keeps_its_changes(make_job: MakeJob, tmp_path: Path) -> None:
    """They are part of its checkpoint."""
    job = make_job(tmp_path / "one", training={"epochs": 1, "threads": 2})
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    training.state.thread_changes.append((0, 1))
    training.state.step = 1
    training.checkpoints.write(training.state)
    resumed = Training(job, EventWriter(tmp_path / "events.jsonl"))
    assert resumed.run().thread_changes == ((0, 1),)


def test_real_steps_are_measured_with_each_number(make_job: MakeJob, tmp_path: Path) -> None:
    """The random numbers and the weights of the training are left alone."""
    job = make_job(tmp_path, training={"epochs": 1})
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    before = {name: value.clone() for name, value in training.state.model.state_dict().items()}
    random = torch.get_rng_state()
    rates = measured_rates(training.thread_plan._trial, [2, 1], 8, 0.05)
    assert set(rates) == {2, 1}
    assert all(rate > 0 for rate in rates.values())
    assert torch.equal(random, torch.get_rng_state())
    for name, value in training.state.model.state_dict().items():
        assert torch.equal(before[name], value)


def test_own_children_are_no_other_programs() -> None:
    """A data-loader worker belongs to the training."""
    loop = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with subprocess.Popen(
        [sys.executable, "-c", f"{loop}\ninput()"], stdin=subprocess.PIPE
    ) as child:
        child_seconds = 0.0
        while child_seconds < 0.3:
            times = psutil.Process(child.pid).cpu_times()
            child_seconds = times.user + times.system
            time.sleep(0.05)
        others = OtherPrograms()
        _, of_others = others.sample()
        own = time.process_time()
        assert busy_seconds() - of_others >= child_seconds + own - 0.1
        time.sleep(0.5)  # the system counts in hundredths of a second
        assert 0 <= others.cores() <= (os.cpu_count() or 1) + 0.5
        child.communicate(b"\n")


def test_the_progress_shows_the_rate_of_the_last_seconds() -> None:
    """A busy moment is seen at once and forgotten after ten seconds; the mean would keep it."""
    rate, seconds, images = RecentRate(), 0.0, 0
    assert rate.add(0.5, 50) == pytest.approx(100)
    for _ in range(200):
        seconds, images = seconds + 0.1, images + 10
        shown = rate.add(0.5 + seconds, 50 + images)
    assert shown == pytest.approx(100)
    for _ in range(12):
        seconds, images = seconds + 1.0, images + 10
        shown = rate.add(0.5 + seconds, 50 + images)
    assert shown == pytest.approx(10)
    assert rate.add(3.0, 30) == pytest.approx(10)  # training went back
    assert rate.add(5.0, 50) == pytest.approx(10)
