"""Records of live flow runs: real processes, killed for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.run_memory import live_runs
from patchline.pipeline.tracking import liveness
from patchline.pipeline.tracking.liveness import Liveness
from tests.patience import patient

_HOLDER = """
import subprocess, sys, os
from pathlib import Path
from patchline.pipeline.run_memory import live_runs

with live_runs.alive(Path(sys.argv[1]), sys.argv[2], "training"):
    if "child" in sys.argv:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("child", child.pid, flush=True)
    if "fork" in sys.argv:
        forked, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            import time
            os.write(said, b"1")
            time.sleep(600)
        os.read(forked, 1)  # the child has left `fork`, and with it all locks
        print("child", pid, flush=True)
    print("holds", flush=True)
    sys.stdin.readline()
if "lingers" in sys.argv:
    print("ended", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(
    workspace: Path, run: str, *how: str
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process | None]]:
    """Start a process that is alive for a flow run; yield it and the child that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(workspace), run, *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = None
    assert process.stdout
    assert process.stdin
    try:
        while (line := process.stdout.readline().strip()) != "holds":
            assert line.startswith("child"), line
            child = psutil.Process(int(line.split()[1]))
        yield process, child
    finally:
        if child is not None and child.is_running():
            child.kill()
        process.stdin.close()
        process.wait(patient(60))
        process.stdout.close()


def test_a_record_tells_who_carries_out_the_run(tmp_path: Path) -> None:
    """While the block runs there is one record, alive; afterwards nothing is left."""
    with live_runs.alive(tmp_path, "run-1", "training") as mine:
        [found] = live_runs.records(tmp_path)
        assert found == mine
        assert found.is_alive
        assert (found.pid, found.what, found.flow_run_id) == (os.getpid(), "training", "run-1")
        assert found.process_started == psutil.Process().create_time()
    assert live_runs.records(tmp_path) == []


def test_the_files_of_an_ended_run_go_with_the_process(tmp_path: Path) -> None:
    """Another process sees an ended run as such until its process ends, and then none."""
    with _holder(tmp_path, "run-1", "lingers") as (process, _):
        assert process.stdin
        process.stdin.write("x\n")
        process.stdin.flush()
        assert process.stdout
        assert process.stdout.readline().strip() == "ended"
        [record] = live_runs.records(tmp_path)
        assert record.is_alive
        assert record.ended
    assert list((tmp_path / "live").iterdir()) == []


def test_sigkill_between_the_end_of_the_work_and_of_the_process_leaves_a_record(
    tmp_path: Path,
) -> None:
    """Prefect may not know the outcome yet, so the run has to be found."""
    with _holder(tmp_path, "run-1", "lingers") as (process, _):
        assert process.stdin
        process.stdin.write("x\n")
        process.stdin.flush()
        assert process.stdout
        assert process.stdout.readline().strip() == "ended"
        process.send_signal(signal.SIGKILL)
        process.wait(patient(60))
        [record] = live_runs.records(tmp_path)
        assert not record.is_alive


def test_one_process_may_carry_out_the_same_run_again(tmp_path: Path) -> None:
    """Prefect's retry of a flow calls it again in the same process."""
    for _ in range(2):
        with live_runs.alive(tmp_path, "run-1", "training"):
            [record] = live_runs.records(tmp_path)
            assert record.is_alive
            assert record.ended is None


def test_one_process_may_be_alive_for_several_runs(tmp_path: Path) -> None:
    """A parent run and its sub-flow have a record each, and each ends by itself."""
    with live_runs.alive(tmp_path, "parent", "watch"):
        with live_runs.alive(tmp_path, "child", "training"):
            assert {record.flow_run_id for record in live_runs.records(tmp_path)} == {
                "parent",
                "child",
            }
        assert [record.flow_run_id for record in live_runs.records(tmp_path)] == ["parent"]


def test_the_record_goes_when_the_block_fails(tmp_path: Path) -> None:
    """An error, or a signal that became one, is a proper end."""
    with pytest.raises(KeyboardInterrupt), live_runs.alive(tmp_path, "run-1", "training"):
        raise KeyboardInterrupt
    assert live_runs.records(tmp_path) == []


def test_sigkill_leaves_a_record_that_is_dead(tmp_path: Path) -> None:
    """The record of a killed process stays, is not alive, and can be removed."""
    with _holder(tmp_path, "run-1") as (process, _):
        [record] = live_runs.records(tmp_path)
        assert record.is_alive
        assert record.pid == process.pid
        record.remove()
        assert live_runs.records(tmp_path) == [record], "a live record was removed"
        process.send_signal(signal.SIGKILL)
        process.wait(patient(60))
        assert not record.is_alive
        assert live_runs.records(tmp_path) == [record]
        record.remove()
    assert live_runs.records(tmp_path) == []


@pytest.mark.parametrize("how", ["child", "fork"])
def test_what_the_process_started_does_not_keep_the_record_alive(tmp_path: Path, how: str) -> None:
    """An orphan that outlives its killed parent, started or forked, holds no lock of it."""
    with _holder(tmp_path, "run-1", how) as (process, child):
        assert child is not None
        process.send_signal(signal.SIGKILL)
        process.wait(patient(60))
        assert child.is_running()
        [record] = live_runs.records(tmp_path)
        assert not record.is_alive


def test_a_second_process_cannot_carry_out_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second is told so, and the first stays alive."""
    monkeypatch.setattr(live_runs, "_WAIT_SECONDS", 0.5)
    with _holder(tmp_path, "run-1") as (process, _):
        with (
            pytest.raises(OrchestrationError, match=r"Another process .* run-1"),
            live_runs.alive(tmp_path, "run-1", "training"),
        ):
            pass
        assert [record.pid for record in live_runs.records(tmp_path)] == [process.pid]


def test_a_retry_takes_the_place_of_a_killed_process(tmp_path: Path) -> None:
    """The same flow run can be carried out again after SIGKILL; the record is the new process's."""
    with _holder(tmp_path, "run-1") as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait(patient(60))
    with live_runs.alive(tmp_path, "run-1", "training"):
        [record] = live_runs.records(tmp_path)
        assert record.pid == os.getpid()
        assert record.is_alive


def test_onlookers_do_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """Two threads that look all the time, and remove what is dead, never stop or lose a run."""
    done = threading.Event()
    wrong: list[str] = []

    def look() -> None:
        while not done.is_set():
            for record in live_runs.records(tmp_path):
                if not record.is_alive:
                    record.remove()

    onlookers = [threading.Thread(target=look) for _ in range(2)]
    for onlooker in onlookers:
        onlooker.start()
    try:
        for turn in range(10):
            with live_runs.alive(tmp_path, f"run-{turn % 3}", "training"):
                if not [record for record in live_runs.records(tmp_path) if record.is_alive]:
                    wrong.append(f"turn {turn}")
    finally:
        done.set()
        for onlooker in onlookers:
            onlooker.join()
    assert wrong == []


@pytest.mark.parametrize("moved", [False, True])
def test_a_record_whose_process_cannot_be_seen_is_left_alone_until_its_heartbeat_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, moved: bool
) -> None:
    """A volume that another machine mounts, too: the lock file's last touch is the heartbeat.

    It is so after a move to another disk, which gives the file another number.
    """
    monkeypatch.setattr(liveness, "STALE_SECONDS", patient(0.5))
    with live_runs.alive(tmp_path, "run-1", "training"):
        record = json.loads((tmp_path / "live" / "run-1.json").read_text(encoding="utf-8"))
    lock = tmp_path / "live" / "run-2.lock"
    lock.touch()
    elsewhere = f"another-kernel 1 {0 if moved else lock.stat().st_ino}"
    record |= {"flow_run_id": "run-2", "lock": elsewhere, "place": "another-kernel 1"}
    (tmp_path / "live" / "run-2.json").write_text(json.dumps(record), encoding="utf-8")
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


@pytest.mark.parametrize("why", ["copied", "missing", "no identity"])
def test_without_its_own_lock_a_record_is_judged_by_its_process(tmp_path: Path, why: str) -> None:
    """In a copy of a workspace, the lock of a live run is free: that proves nothing."""
    with _holder(tmp_path / "original", "run-1") as (process, _):
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        if why == "missing":
            (tmp_path / "copy" / "live" / "run-1.lock").unlink()
        elif why == "no identity":
            file = tmp_path / "copy" / "live" / "run-1.json"
            content = {**json.loads(file.read_text(encoding="utf-8")), "lock": ""}
            file.write_text(json.dumps(content), encoding="utf-8")
        [record] = live_runs.records(tmp_path / "copy")
        assert record.process_state is Liveness.ALIVE
        record.remove()
        record.mark_sought()
        assert live_runs.records(tmp_path / "copy") == [record]
        reused = record.model_copy(update={"process_started": record.process_started - 60})
        hidden = record.model_copy(update={"place": "another-kernel 1"})
        for unseen in (reused, hidden):
            assert unseen.at(record._lock_file).process_state is Liveness.UNKNOWN
        process.kill()
        deadline = time.monotonic() + patient(30)
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert record.is_dead  # also while nobody has waited for it
        process.wait(patient(60))
        assert record.is_dead
        record.remove()
        assert live_runs.records(tmp_path / "copy") == []


def test_a_process_touches_the_locks_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So others see that it is alive, even if a lock has no effect there."""
    monkeypatch.setattr(live_runs, "_touching", None)  # the thread of another test sleeps longer
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.05)
    with live_runs.alive(tmp_path, "run-1", "training"):
        lock = tmp_path / "live" / "run-1.lock"
        os.utime(lock, (1, 1))
        deadline = time.monotonic() + patient(30)
        while lock.stat().st_mtime == 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_records_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """A torn or foreign file in the folder disturbs nobody."""
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "torn.json").write_text('{"pid": 1', encoding="utf-8")
    (tmp_path / "live" / "foreign.json").write_text('{"pid": 1, "new": 2}', encoding="utf-8")
    with live_runs.alive(tmp_path, "run-1", "training"):
        assert [record.flow_run_id for record in live_runs.records(tmp_path)] == ["run-1"]


@pytest.mark.parametrize("bad", ["", "../outside", "a/b", ".hidden"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, bad: str) -> None:
    """A flow run without an id, or with one that leads elsewhere, gets no record."""
    with pytest.raises(OrchestrationError, match="not the id"), live_runs.alive(tmp_path, bad, "x"):
        pass


_OWNER = """
import sys
from pathlib import Path
from patchline.pipeline.run_memory import live_runs

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
        assert tag.startswith(live_runs.OWNER)
        assert not live_runs.owner_is_gone(tmp_path, ["patchline", tag])
        process.kill()
    assert live_runs.owner_is_gone(tmp_path, ["patchline", tag])
    assert not live_runs.owner_is_gone(tmp_path / "other", [tag])
    assert not live_runs.owner_is_gone(tmp_path, ["patchline"])
    shutil.copytree(tmp_path / "live", tmp_path / "copy" / "live")
    assert not live_runs.owner_is_gone(tmp_path / "copy", [tag])
    for odd in ("owner:", "owner:../x", "owner:a:b:c", tag.rpartition(":")[0]):
        assert not live_runs.owner_is_gone(tmp_path, [odd])
