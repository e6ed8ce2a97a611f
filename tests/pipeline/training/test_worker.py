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
from patchline.pipeline.training.faults import dead_workers_named
from patchline.pipeline.training.job import TRAINING
from patchline.pipeline.workers.event_log import Event
from tests.patience import until
from tests.pipeline.training.trained_jobs import Make
from tests.pipeline.workers.family_worker import FAMILY, Idle

PARENT = """
import sys
from pathlib import Path
from tests.pipeline.workers.family_worker import FAMILY, Idle

FAMILY.run(Path(sys.argv[1]), Idle(), lambda event: print(event["kind"]))
"""


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker process find a module of the tests, which is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def _group_of(module: str, parent: psutil.Process) -> int:
    """Return the id of a worker's process group, which it leads and which has other members."""
    [worker] = [child for child in parent.children() if module in child.cmdline()]
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
    assert len(_members(worker.pid)) >= 2, "the worker's own process is running"
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


def _wait_for_end(group: int) -> None:
    until(lambda: not _members(group), "a process is left", seconds=60)


def test_a_killed_worker_is_an_error_that_names_the_signal(make: Make) -> None:
    """SIGKILL of the worker, as by the kernel out of memory, is named together with its log.

    Nothing is left: no process of the group, and none of its semaphores in /dev/shm.
    """
    job = make("job", training={"epochs": 100_000}, data={"workers": 1})
    groups: list[int] = []
    semaphores: set[Path] = set()

    def kill(event: Event) -> None:
        if event["kind"] in ("progress", "metrics") and not groups:
            groups.append(_group_of(TRAINING.module, psutil.Process()))
            for process in _members(groups[0]):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                found = re.findall(r"/dev/shm/sem\.\S+", maps)  # noqa: S108 - no file of ours
                semaphores.update(map(Path, found))
            os.kill(groups[0], signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"pipeline\.training was killed by SIGKILL .*memory"):
        TRAINING.run(job.folder, job, kill)
    _wait_for_end(groups[0])
    assert semaphores, "the workers' queues are semaphores"
    until(lambda: not [each for each in semaphores if each.exists()], "semaphores are left")


def test_an_error_in_the_parent_stops_the_whole_group(tmp_path: Path) -> None:
    """When an event cannot be handled, the worker and its own processes end before the error."""
    groups: list[int] = []

    def fail(_: Event) -> None:
        groups.append(_group_of(FAMILY.module, psutil.Process()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FAMILY.run(tmp_path / "job", Idle(), fail)
    assert len(groups) == 1
    _wait_for_end(groups[0])


def test_a_killed_parent_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL of the parent ends the worker and its own processes."""
    command = [sys.executable, "-u", "-c", PARENT, str(tmp_path / "job")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip() == "progress"
        group = _group_of(FAMILY.module, psutil.Process(parent.pid))
    finally:
        parent.kill()
        parent.communicate()
    _wait_for_end(group)


def _loading() -> Any:
    """Return the iterator of a data loader with a worker that loads."""
    loader: DataLoader[Any] = DataLoader(range(100_000), num_workers=1)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    return batches


def test_a_worker_that_torch_finds_gone_is_named_with_its_signal() -> None:
    """Torch may see that a worker is not alive before it asks the system why."""
    batches = _loading()
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
    batches = _loading()
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
