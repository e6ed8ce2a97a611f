"""A failing test leaves nothing behind: real test sessions, real processes, killed in every way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import process_owners
from tests.patience import patient, until
from tests.process_owners import VARIABLE

_ROOT = Path(__file__).resolve().parents[2]
_CONFTEST = """
from tests.process_owners import Owners

def pytest_configure(config):
    config.pluginmanager.register(Owners(config), "owners")
"""
_TESTS = """
import os, signal, subprocess, sys, time
import pytest

ORPHAN = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"

def start(name):
    with open({pids!r}, "a") as file:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(name, process.pid, file=file)
    return process

@pytest.fixture(scope="session", autouse=True)
def lasting():
    return start("session")

@pytest.fixture(scope="module", autouse=True)
def served():
    return start("module")

@pytest.fixture(autouse=True)
def own(request, lasting, served):
    assert lasting.poll() is None
    assert served.poll() is None
    return start(request.node.name)

def test_fails():
    assert False

def test_orphans():
    subprocess.run([sys.executable, "-S", "-c", ORPHAN], check=True)
    assert False

@pytest.mark.timeout({moment}, func_only=True)
def test_hangs():
    time.sleep(600)

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_passes(own):
    assert own.poll() is None
"""


def _owned() -> list[psutil.Process]:
    """Return what this test has started and what that has started in turn."""
    mine = os.environ[VARIABLE]
    return process_owners.found(lambda name: name == mine or name.startswith(f"{mine}|"))


def _lives(pid: int) -> bool:
    """Return whether a process is there that still does something."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # its parent may never ask
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_a_failing_test_leaves_no_process(tmp_path: Path) -> None:
    """Test, module and session each end what they started, and the next test has its servers."""
    pids, test_file = tmp_path / "pids.txt", tmp_path / "test_leaving.py"
    (tmp_path / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    tests = _TESTS.format(pids=str(pids), moment=patient(0.5))
    test_file.write_text(tests, encoding="utf-8")
    plugins = ("-p", "xdist", "-p", "pytest_timeout", "-n", "1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, str(test_file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=patient(240),
        check=False,
    )
    assert "4 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout" in done.stdout
    started = [line.split() for line in pids.read_text(encoding="utf-8").splitlines()]
    names = [name for name, _ in started]
    assert len(names) == len(set(names)) + 2, "module and session start again after SIGKILL"
    until(lambda: not [name for name, pid in started if _lives(int(pid))], "a process is left")
    assert _owned() == []


def test_what_others_started_is_left_alone() -> None:
    """Only what carries the owner's name is killed, with what it started in sessions of its own."""
    mine = os.environ[VARIABLE]
    with process_owners.owned_by(f"{mine} and somebody else"):
        other = subprocess.Popen(["sleep", "600"])
    nested = """
import subprocess, time
subprocess.Popen(["sleep", "600"], env={})
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", nested], start_new_session=True) as own:
        until(lambda: psutil.Process(own.pid).children(), "nothing was started")
        assert len(process_owners.end(mine)) == 2
        own.wait(patient(60))
    assert other.poll() is None
    assert len(process_owners.end(f"{mine} and somebody else")) == 1
    other.wait(patient(60))
