"""Records of live flow runs: real processes, killed for real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.file_locks import Liveness
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking import liveness
from tests.patience import patient

_HOLDER = """
import subprocess, sys, os
from pathlib import Path
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.run_memory import live_runs

with live_runs.alive(Path(sys.argv[1]), "run-1", "training"):
    forked, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        import time
        os.write(said, b"1")
        time.sleep(600)
    os.read(forked, 1)  # the child has left `fork`, and with it all locks
    print(pid, flush=True)
    sys.stdin.readline()
print("ended", flush=True)
sys.stdin.read()
"""


@contextmanager
def _holder(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is alive for a flow run, and has a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(workspace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    child = psutil.Process(int(process.stdout.readline()))
    try:
        yield process
        assert child.is_running()
    finally:
        child.kill()
        process.stdin.close()
        process.wait(patient(60))
        process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """Let the work of a process end, which itself remains."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("x\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == "ended"


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(patient(60))


def test_the_files_of_an_ended_run_go_with_the_process(tmp_path: Path) -> None:
    """Another process sees an ended run as such until its process ends, and then none."""
    with _holder(tmp_path) as process:
        _end(process)
        [record] = live_runs.records(tmp_path)
        assert record.is_alive
        assert record.ended
    assert list((tmp_path / "live").iterdir()) == []


def test_sigkill_between_the_end_of_the_work_and_of_the_process_leaves_a_record(
    tmp_path: Path,
) -> None:
    """Prefect may not know the outcome yet, so the run has to be found."""
    with _holder(tmp_path) as process:
        _end(process)
        _kill(process)
        [record] = live_runs.records(tmp_path)
        assert not record.is_alive


def test_one_process_may_be_alive_for_several_runs(tmp_path: Path) -> None:
    """A parent run and its sub-flow have a record each, and each ends by itself, or by an error.

    A torn or foreign file in the folder disturbs nobody.
    """

    def names() -> set[str]:
        return {record.flow_run_id for record in live_runs.records(tmp_path)}

    for name, text in (("torn", '{"pid": 1'), ("foreign", '{"pid": 1, "new": 2}')):
        write_text(tmp_path / "live" / f"{name}.json", text)
    with live_runs.alive(tmp_path, "parent", "watch"):
        with (  # noqa: PT012 - what is reached counts
            pytest.raises(KeyboardInterrupt),
            live_runs.alive(tmp_path, "child", "training"),
        ):
            assert names() == {"parent", "child"}
            raise KeyboardInterrupt
        assert names() == {"parent"}
    assert names() == set()


def test_sigkill_leaves_a_record_that_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the process lives no other may carry out the run; once it is killed, one may.

    The killed process has forked a child that outlives it and holds no lock of it.
    """
    monkeypatch.setattr(live_runs, "_WAIT_SECONDS", 0.2)
    with _holder(tmp_path) as process:
        [record] = live_runs.records(tmp_path)
        assert record.is_alive
        assert (record.pid, record.what) == (process.pid, "training")
        with (
            pytest.raises(OrchestrationError, match=r"Another process .* run-1"),
            live_runs.alive(tmp_path, "run-1", "training"),
        ):
            pass
        record.remove()
        assert live_runs.records(tmp_path) == [record], "a live record was removed"
        _kill(process)
        assert not record.is_alive
        assert live_runs.records(tmp_path) == [record]
        with live_runs.alive(tmp_path, "run-1", "training"):
            [again] = live_runs.records(tmp_path)
            assert again.pid == os.getpid()
            assert again.is_alive
        assert live_runs.records(tmp_path) == []


def test_a_record_whose_process_cannot_be_seen_is_left_alone_until_its_heartbeat_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that another machine mounts, too: the lock file's last touch is the heartbeat.

    It is so after a move to another disk, which gives the file another number.
    """
    monkeypatch.setattr(liveness, "STALE_SECONDS", patient(0.4))
    with live_runs.alive(tmp_path, "run-1", "training") as mine:
        elsewhere = {"lock": "another-kernel 1 0", "place": "another-kernel 1"}
    lock = tmp_path / "live" / "run-2.lock"
    lock.touch()
    mine.model_copy(update={"flow_run_id": "run-2", **elsewhere}).at(lock).write()
    [found] = live_runs.records(tmp_path)
    assert not found.is_here
    for _ in range(3):
        assert found.process_state is not Liveness.DEAD
        found.remove()
        assert live_runs.records(tmp_path) == [found]
        time.sleep(liveness.STALE_SECONDS / 2)
        os.utime(lock)
    assert found.is_alive
    time.sleep(liveness.STALE_SECONDS * 1.1)
    assert found.is_dead
    found.remove()
    assert live_runs.records(tmp_path) == []


@pytest.mark.parametrize("is_missing", [False, True])
def test_without_its_own_lock_a_record_is_judged_by_its_process(
    tmp_path: Path, *, is_missing: bool
) -> None:
    """In a copy of a workspace, the lock of a live run is free: that proves nothing."""
    with _holder(tmp_path / "original") as process:
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        if is_missing:
            (tmp_path / "copy" / "live" / "run-1.lock").unlink()
        [record] = live_runs.records(tmp_path / "copy")
        assert record.process_state is Liveness.ALIVE
        record.remove()
        record.mark_sought()
        assert live_runs.records(tmp_path / "copy") == [record]
        for wrong in ({"process_started": record.process_started - 60}, {"place": "another 1"}):
            unseen = record.model_copy(update=wrong).at(record._lock_file)
            assert unseen.process_state is Liveness.UNKNOWN
        _kill(process)
        assert record.is_dead
        record.remove()
        assert live_runs.records(tmp_path / "copy") == []


def test_a_process_touches_the_locks_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So others see that it is alive, even if a lock has no effect there."""
    live_runs._build_periodic_touch.cache_clear()  # the thread of another test sleeps longer
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.05)
    with live_runs.alive(tmp_path, "run-1", "training"):
        lock = tmp_path / "live" / "run-1.lock"
        os.utime(lock, (1, 1))
        deadline = time.monotonic() + patient(30)
        while lock.stat().st_mtime == 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("bad", ["", "../outside"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, bad: str) -> None:
    """A flow run without an id, or with one that leads elsewhere, gets no record."""
    with pytest.raises(OrchestrationError, match="not the id"), live_runs.alive(tmp_path, bad, "x"):
        pass


_OWNER = """
import sys
from pathlib import Path
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.run_memory import live_runs

with live_runs.owner(Path(sys.argv[1])) as tag:
    print(tag, flush=True)
    sys.stdin.read()
"""


def test_an_owner_is_gone_when_its_process_is(tmp_path: Path) -> None:
    """Its tag tells so in its own folder; other tags and other folders say nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        tag = process.stdout.readline().strip()
        assert not live_runs.owner_is_gone(tmp_path, ["patchline", tag])
        process.kill()
    assert live_runs.owner_is_gone(tmp_path, ["patchline", tag])
    shutil.copytree(tmp_path / "live", tmp_path / "copy" / "live")
    assert not live_runs.owner_is_gone(tmp_path / "copy", [tag])
    for odd in ("patchline", "owner:", "owner:../x", "owner:a:b:c", tag.rpartition(":")[0]):
        assert not live_runs.owner_is_gone(tmp_path, [odd])
