"""Whether an owner is alive, dead or not known: real locks, real processes, real namespaces."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import RunError, TakenOverError
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.file_locks import Liveness, hold_lock, holder_of
from patchline.pipeline.workspace.tracking import (
    liveness,
    run_owner,
    tracked_run,
)
from patchline.pipeline.workspace.tracking.liveness import of_heartbeat
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.patience import patient, until

CONFIG = RunConfig(name="roses")
_OWNER = """
import sys
from pathlib import Path
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import TakenOverError
from patchline.pipeline.workspace.tracking import liveness, tracked_run
liveness.BEAT_SECONDS, liveness.STALE_SECONDS = float({stale}) / 3, float({stale})

def owned():
    return tracked_run.open_owned_run(RunConfig(name="roses"), Path("runs"), {{}})

with owned() as first:
    try:
        with owned() as second:
            print(first.run_id, second.run_id, flush=True)
            sys.stdin.readline()
            tracked_run.set_tags(second, {{"finished": "yes"}})
    except TakenOverError as error:
        print(error, flush=True)
    tracked_run.set_tags(first, {{"finished": "yes"}})
print("done", flush=True)
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let a heartbeat be stale after a second; return that time."""
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(liveness, "STALE_SECONDS", patient(1.0))
    return float(liveness.STALE_SECONDS)


@contextmanager
def _owner(stale: float) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a process that owns two runs and beats three times in `stale`; yield all."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER.format(stale=patient(stale))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        yield process, process.stdout.readline().split()
    finally:
        process.kill()
        process.communicate(timeout=patient(60))


def _status(run_id: str) -> str:
    return str(client().get_run(run_id).info.status)


def _suspend(process: subprocess.Popen[str]) -> None:
    """Stop a process while it holds no lock on the database."""
    with closing(sqlite3.connect("mlflow.db", timeout=patient(60))) as database:
        database.execute("BEGIN EXCLUSIVE")
        process.send_signal(signal.SIGSTOP)
        stopped = psutil.STATUS_STOPPED
        until(lambda: psutil.Process(process.pid).status() == stopped, "it does not stop")


def _beat(run_id: str) -> str:
    return str(client().get_run(run_id).data.tags[liveness.HEARTBEAT_TAG])


# -- the lock -----------------------------------------------------------------------------------


def test_a_lock_is_evidence_only_where_it_is_the_same_lock(tmp_path: Path) -> None:
    """Held: alive. Free and the same: dead. Missing, copied, of another kernel: not known."""
    file, copy = tmp_path / "owner.lock", tmp_path / "copy" / "owner.lock"
    copy.parent.mkdir()
    with hold_lock(file):
        identity = liveness.lock_identity(file)
        assert identity == file_locks.identity(file)
        assert holder_of(file, 0, identity) is Liveness.ALIVE
        assert holder_of(file, 0, "") is Liveness.ALIVE
        shutil.copy(file, copy)
        assert holder_of(copy, 0, identity) is Liveness.UNKNOWN, "a copied workspace"
    assert holder_of(file, 0, identity) is Liveness.DEAD
    assert holder_of(file, 0, "") is Liveness.UNKNOWN
    elsewhere = " ".join(["another-kernel", *identity.split()[1:]])
    assert holder_of(file, 0, elsewhere) is Liveness.UNKNOWN, "the same volume, seen from elsewhere"
    assert holder_of(tmp_path / "missing" / "owner.lock", 0, identity) is Liveness.UNKNOWN
    assert holder_of(file / "below" / "owner.lock", 0, identity) is Liveness.UNKNOWN
    assert holder_of(file, 0, liveness.lock_identity(file)) is Liveness.UNKNOWN, (
        "locks have no effect"
    )


# -- the heartbeat ------------------------------------------------------------------------------


def test_a_heartbeat_is_judged_by_its_change_and_never_by_a_clock(short: float) -> None:
    """First seen: not known. Changed: alive. The same for long enough: dead, whatever it says."""
    assert of_heartbeat("a", "") is Liveness.UNKNOWN
    assert of_heartbeat("a", "1970-01-01T00:00:00Z 1") is Liveness.UNKNOWN, "a clock that is wrong"
    assert of_heartbeat("a", "1970-01-01T00:00:01Z 2") is Liveness.ALIVE
    assert of_heartbeat("b", "2999-01-01T00:00:00Z 1") is Liveness.UNKNOWN
    time.sleep(short * 1.1)
    assert of_heartbeat("a", "1970-01-01T00:00:01Z 2") is Liveness.DEAD
    assert of_heartbeat("b", "2999-01-01T00:00:00Z 1") is Liveness.DEAD, "a clock that is ahead"
    assert of_heartbeat("b", "2999-01-01T00:00:00Z 2") is Liveness.UNKNOWN, "changed at some time"


def test_commands_that_end_at_once_observe_together(short: float, tmp_path: Path) -> None:
    """What a command saw is in the workspace; with a torn file, it starts over."""
    (tmp_path / ".patchline").mkdir()
    assert of_heartbeat("run", "beat 1") is Liveness.UNKNOWN
    time.sleep(short * 1.1)
    liveness._seen_here.clear()
    assert of_heartbeat("run", "beat 1") is Liveness.DEAD
    liveness._seen_here.clear()
    (tmp_path / ".patchline" / "heartbeats.json").write_text("{", "utf-8")
    assert of_heartbeat("run", "beat 1") is Liveness.UNKNOWN


@pytest.mark.usefixtures("own_store")
def test_a_run_whose_lock_cannot_be_seen_is_closed_by_its_heartbeat_alone(
    tmp_path: Path, short: float
) -> None:
    """It beats: left alone, for ever. It stops: closed. It has no heartbeat: left alone."""
    store = client()
    with tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}) as run:
        (tmp_path / "runs").rename(tmp_path / "hidden")
        before, end = _beat(run.run_id), time.monotonic() + 1.3 * short
        while time.monotonic() < end:
            assert tracked_run.close_abandoned() == []
            time.sleep(short / 10)
        assert _beat(run.run_id) != before
        gone = {liveness.HOST_TAG: "pod", liveness.FOLDER_TAG: "/not/here"}
        stale = store.create_run(run.experiment_id, tags={**gone, liveness.HEARTBEAT_TAG: "1"})
        silent = store.create_run(run.experiment_id, tags=gone)
        assert tracked_run.close_abandoned() == []
        time.sleep(short * 1.1)
        assert tracked_run.close_abandoned() == [stale.info.run_id]
        assert _status(silent.info.run_id) == _status(run.run_id) == "RUNNING"
        (tmp_path / "hidden").rename(tmp_path / "runs")


# -- the owner ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_store")
def test_of_many_that_take_over_a_run_exactly_one_wins(tmp_path: Path) -> None:
    """They have all seen the same dead owner; the store lets one of them be the next."""
    with pytest.raises(KeyError), tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}) as run:
        raise KeyError
    seen = client().get_run(run.run_id)

    def claimed(_: int) -> str:
        try:
            return str(run_owner.claim(client(), seen))
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        won, *lost = sorted(pool.map(claimed, range(3)))
    assert won == "2"
    assert all("has just taken over the run" in each for each in lost)
    assert run_owner.claim(client(), client().get_run(run.run_id)) == 3, "after the next kill"


@pytest.mark.parametrize("checking", [True, False])
@pytest.mark.usefixtures("own_store", "short")
def test_an_owner_that_was_taken_over_writes_nothing_more(
    tmp_path: Path, *, checking: bool
) -> None:
    """It finds out by a heartbeat or before a write, stops with a sentence, and closes nothing."""

    def lose(run: tracked_run.TrackedRun) -> None:
        run_owner.claim(client(), client().get_run(run.run_id))
        if checking:
            tracked_run.check_owner(run)

    with (
        pytest.raises(TakenOverError, match=r"has taken over the run .* so this one stops"),
        tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}) as run,
    ):
        lose(run)
    assert _status(run.run_id) == "RUNNING"


@pytest.mark.usefixtures("own_store")
@pytest.mark.slow
def test_a_suspended_owner_wakes_up_to_what_has_happened() -> None:
    """Closed meanwhile: it reopens its run and finishes. Taken over: it stops, in a sentence."""
    with _owner(4.0) as (process, (closed, taken)):
        store = client()
        _suspend(process)
        tracked_run.end_run(store, closed, store.get_run(closed).info.experiment_id, "KILLED")
        run_owner.claim(store, store.get_run(taken))
        time.sleep(patient(2.2))  # nobody may claim a run sooner, and then its owner asks the store
        process.send_signal(signal.SIGCONT)
        until(lambda: _status(closed) == "RUNNING", "it did not reopen its run", seconds=30)
        said, done = process.communicate("continue\n", patient(60))[0].splitlines()
        assert f"has taken over the run {taken[:8]}" in said
        assert done == "done"
        assert _status(closed) == "FINISHED"
        assert _status(taken) == "RUNNING", "it belongs to the next owner"
        assert "finished" not in store.get_run(taken).data.tags
