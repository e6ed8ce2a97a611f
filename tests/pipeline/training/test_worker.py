"""The training process is followed, reports its errors, and is never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader

from patchline.pipeline.errors import WorkerError
from patchline.pipeline.training.faults.data_workers import dead_workers_named
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_process import run_worker
from tests.patience import patient, until
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.workers.family_worker import Idle

MODULE = "patchline.pipeline.training"
_SEMAPHORE = r"/dev/shm/sem\.\S+"  # noqa: S108 - not a temporary file of ours
LONG: dict[str, Any] = {"training": {"epochs": 100_000}, "data": {"workers": 1}}
"""A training that nobody waits for, with a process of its own that loads the images."""

FAMILY = "tests.pipeline.workers.family_worker"
"""A worker with a process of its own, which takes no seconds to start."""
PARENT = f"""
import sys
from pathlib import Path
from patchline.pipeline.workers.worker_process import run_worker
from tests.pipeline.workers.family_worker import Idle

run_worker({FAMILY!r}, Path(sys.argv[1]), Idle(), Idle, lambda event: print(event["kind"]))
"""


@pytest.fixture
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker process find a module of the tests, which is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def _group_of_the_worker(module: str = MODULE) -> int:
    """Return the id of the worker's process group; the worker leads it."""
    children = psutil.Process().children()
    [worker] = [child for child in children if module in child.cmdline()]
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
    return worker.pid


def _members(group: int) -> list[psutil.Process]:
    """Return the living processes of a group."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getpgid(process.pid) == group:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue  # it ended while we looked
    return found


def _ends(group: int) -> bool:
    """Return whether all processes of a group end."""
    deadline = time.monotonic() + patient(60)
    while _members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _members(group)


def _is_training(event: Event) -> bool:
    return event["kind"] in ("progress", "metrics")


def test_a_result_comes_back_and_every_event_once(make_job: MakeJob, tmp_path: Path) -> None:
    """The parent gets the result, and sees all events in the order of their numbers."""
    job = make_job(tmp_path / "job", training={"epochs": 2})
    events: list[Event] = []
    result = run_worker(MODULE, job.folder, job, TrainResult, events.append)
    assert result.best == job.folder / "best"
    assert (result.best / "model.safetensors").is_file()
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert sum(event["kind"] == "metrics" for event in events) == 2
    assert [event["name"] for event in events if event["kind"] == "artifact"] == [
        "augmentation_preview.png"
    ]


def test_a_killed_worker_is_an_error_that_names_the_signal(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """SIGKILL of the worker, as by the kernel out of memory, is named together with its log.

    Nothing is left: no process of the group, and none of its semaphores in /dev/shm.
    """
    job = make_job(tmp_path / "job", **LONG)
    groups: list[int] = []
    semaphores: set[Path] = set()

    def kill(event: Event) -> None:
        if _is_training(event) and not groups:
            groups.append(_group_of_the_worker())
            assert len(_members(groups[0])) >= 2, "the process that loads images is running"
            for process in _members(groups[0]):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                semaphores.update(Path(line) for line in re.findall(_SEMAPHORE, maps))
            os.kill(groups[0], signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"pipeline\.training was killed by SIGKILL .*memory"):
        run_worker(MODULE, job.folder, job, TrainResult, kill)
    assert _ends(groups[0])
    assert semaphores, "the workers' queues are semaphores"
    until(lambda: not [each for each in semaphores if each.exists()], "semaphores are left")


@pytest.mark.usefixtures("_findable")
def test_an_error_in_the_parent_stops_the_whole_group(tmp_path: Path) -> None:
    """When an event cannot be handled, the worker and its own processes end before the error."""
    groups: list[int] = []

    def fail(_: Event) -> None:
        groups.append(_group_of_the_worker(FAMILY))
        assert len(_members(groups[0])) >= 2, "the worker's own process is running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_worker(FAMILY, tmp_path / "job", Idle(), Idle, fail)
    assert len(groups) == 1
    assert _ends(groups[0])


@pytest.mark.usefixtures("_findable")
def test_a_killed_parent_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL of the parent ends the worker and its own processes."""
    parent = subprocess.Popen(
        [sys.executable, "-u", "-c", PARENT, str(tmp_path / "job")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        kinds = iter(parent.stdout.readline, "")
        assert next(kinds).strip() == "progress"
        [worker] = psutil.Process(parent.pid).children()
        group = os.getpgid(worker.pid)
        assert group == worker.pid
        assert len(_members(group)) >= 2
    finally:
        parent.kill()
        parent.communicate()
    assert _ends(group)


@pytest.mark.slow
def test_a_killed_data_worker_is_an_error_with_its_reason(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """SIGKILL of a process that loads images ends the training with a sentence, and its signal."""
    job = make_job(tmp_path / "job", **LONG)
    killed: list[int] = []

    def kill(event: Event) -> None:
        if _is_training(event) and not killed:
            group = _group_of_the_worker()
            [loader] = [each for each in _members(group) if each.pid != group]
            killed.append(loader.pid)
            loader.kill()

    with pytest.raises(WorkerError, match=r"A data-loader worker was killed .*'Killed'.*memory"):
        run_worker(MODULE, job.folder, job, TrainResult, kill)


def test_a_worker_that_torch_finds_gone_is_named_with_its_signal() -> None:
    """Torch may see that a worker is not alive before it asks the system why."""
    loader: DataLoader[Any] = DataLoader(range(100_000), num_workers=1)  # type: ignore[arg-type]
    batches: Any = iter(loader)
    next(batches)
    [worker] = batches._workers
    worker.kill()
    worker.join()  # so that the system has nothing more to tell
    with (
        pytest.raises(WorkerError, match="was killed by the signal 'Killed'"),
        dead_workers_named(),
    ):
        for _ in batches:
            pass


def test_a_connection_that_breaks_is_the_worker_that_was_killed() -> None:
    """Torch may fail to receive a batch before it knows that the worker is dead."""
    loader: DataLoader[Any] = DataLoader(range(100_000), num_workers=1)  # type: ignore[arg-type]
    batches: Any = iter(loader)
    next(batches)
    worker = psutil.Process(batches._workers[0].pid)
    worked = -1.0
    while worked != (worked := sum(worker.cpu_times())):  # at work it may hold a lock of torch's
        time.sleep(0.1)
    worker.kill()
    with (
        pytest.raises(WorkerError, match=r"A data-loader worker was killed .*'Killed'"),
        dead_workers_named(),
    ):
        raise ConnectionResetError("Connection reset by peer")
    with pytest.raises(BrokenPipeError), dead_workers_named():
        raise BrokenPipeError("of another connection")
