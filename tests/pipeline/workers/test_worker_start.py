"""Workers that are prepared before their work is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.errors import RunError, WorkerError
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_start import LocalLauncher
from tests.patience import patient
from tests.pipeline.workers.echo_worker import ECHO, Answer, Question

MODULE = ECHO.module
PARENT = f"""
import time
from patchline.pipeline.workers.worker_start import LocalLauncher, allow_prepared_workers
with allow_prepared_workers():
    LocalLauncher().prepare({MODULE!r})
    print(LocalLauncher().introduction({MODULE!r}), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker process find the module, which is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture
def _prepared() -> Iterator[None]:
    with worker_start.allow_prepared_workers():
        LocalLauncher().prepare(MODULE)
        yield


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if MODULE in _words(child)]


def _words(child: psutil.Process) -> list[str]:
    """Return the command of a process, which it has a moment after it was started."""
    end = time.monotonic() + patient(5)
    while not (words := child.cmdline()) and time.monotonic() < end:
        if child.status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.01)
    return words


def _ask(folder: Path, words: str) -> tuple[Answer, list[Event]]:
    events: list[Event] = []
    answer = ECHO.run(folder, Question(words=words), events.append)
    return answer, events


@pytest.mark.usefixtures("_prepared")
def test_a_prepared_worker_does_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the process that was started before; result, events and log are where they belong.

    Relative paths begin where the parent works by then. A worker does one job; the next one starts
    as if nothing had been prepared. Threads that wait for its introduction do not keep it from its
    job.
    """
    [waiting] = _children()
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(LocalLauncher().introduction, MODULE)
        answer, events = _ask(tmp_path / "job", "hello")
    assert answer == Answer(
        words="hello",
        process=waiting.pid,
        collected_at_import=False,
        collects=True,
        working_directory=tmp_path,
    )
    assert [event["message"] for event in events if event["kind"] == "warning"] == ["hello"]
    assert "said hello" in (tmp_path / "job/worker.log").read_text("utf-8")
    assert not _children()
    second, _ = _ask(tmp_path / "second", "two")
    assert (second.collected_at_import, second.collects) == (False, True)
    assert (second.words, second.process == waiting.pid) == ("two", False)


@pytest.mark.usefixtures("_prepared")
def test_a_prepared_worker_that_was_killed_is_replaced(tmp_path: Path) -> None:
    """Its end is no failure of the run."""
    [waiting] = _children()
    waiting.kill()
    waiting.wait()
    answer, _ = _ask(tmp_path / "job", "hello")
    assert answer.words == "hello"
    assert answer.process != waiting.pid


def test_what_nobody_took_ends_with_the_outer_block() -> None:
    """Also when the block ends with an error; outside a block nothing is prepared.

    A flow within a command uses what the command has prepared, and no second one is.
    """

    def stopped() -> None:
        with worker_start.allow_prepared_workers():
            LocalLauncher().prepare(MODULE)
            before = _children()
            with worker_start.allow_prepared_workers():
                LocalLauncher().prepare(MODULE)
            assert _children() == before
            assert len(before) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    LocalLauncher().prepare(MODULE)
    assert not _children()
    assert LocalLauncher().introduction(MODULE) == ""


@pytest.mark.usefixtures("_prepared")
def test_an_error_of_a_prepared_worker_arrives_as_it_was(tmp_path: Path) -> None:
    """What it raises on purpose is raised in the parent: same class, same sentence."""
    with pytest.raises(RunError, match=r"^I say nothing\.$"):
        _ask(tmp_path / "job", "")


def test_an_error_that_nobody_meant_names_the_log(tmp_path: Path) -> None:
    """Any other error is reported with the worker's last words and the place of its log."""
    with pytest.raises(WorkerError) as caught:
        _ask(tmp_path / "job", "unforeseen")
    for words in ("exited with code 1", "ZeroDivisionError", str(tmp_path / "job/worker.log")):
        assert words in str(caught.value)


def test_a_prepared_worker_ends_with_its_parent() -> None:
    """Also when the parent is killed and cannot stop it."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"{")
        [worker] = psutil.Process(parent.pid).children()
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + patient(60)
    while worker.is_running() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.is_running()
