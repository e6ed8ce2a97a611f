"""Whatever a test starts ends with it, however it ends: passed, failed, timed out or killed.

Each process inherits a variable that names its owner: the test, or the module or session whose
fixture started it. When the owner is over, what still carries its name is killed, with descendants
and sessions of its own. The plugin is registered by `tests/conftest.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.patience import patient

VARIABLE = "PATCHLINE_TEST_OWNER"
_foreign: set[int] = set()
"""Processes that no test started, so that looking again costs nothing."""


class Owners:
    """Gives each process of a test session its owner, and ends it with that owner."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_worker = hasattr(config, "workerinput")
        if self._is_worker:
            self._run = os.environ[VARIABLE]
            self._session = f"{self._run}|{os.environ['PYTEST_XDIST_WORKER']}"
        else:
            outer = os.environ.get(VARIABLE, "tests")
            self._run = os.environ[VARIABLE] = f"{outer}|{os.getpid()}"
            self._session = f"{self._run}|main"
        self._outer = self._run.rpartition("|")[0]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Let the test own what it starts."""
        os.environ[VARIABLE] = self._test(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Let the module or the session own what its fixtures start."""
        owner = {"session": self._session, "function": self._test(request.node)}.get(
            fixturedef.scope
        )
        with owned_by(owner or self._module(request.node)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """End what is left of the test, and of its module after the last of its tests."""
        try:
            return (yield)
        finally:
            end(self._test(item))
            if nextitem is None or nextitem.path != item.path:
                end(self._module(item))
            os.environ[VARIABLE] = self._run

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """End what a test process left that was killed itself."""
        end_all_under(f"{self._run}|{node.gateway.id}")

    def pytest_unconfigure(self) -> None:
        """End what the session left."""
        end_all_under(self._session)
        if not self._is_worker:
            end_all_under(self._run, but=self._run)
            os.environ[VARIABLE] = self._outer

    def _test(self, item: pytest.Item) -> str:
        return f"{self._session}|{item.nodeid}"

    def _module(self, item: pytest.Item) -> str:
        return f"{self._session}|module {item.path}"


@contextlib.contextmanager
def owned_by(owner: str) -> Iterator[None]:
    """Give what the block starts to an owner."""
    before = os.environ[VARIABLE]
    os.environ[VARIABLE] = owner
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def end(owner: str) -> list[psutil.Process]:
    """Kill what carries an owner's name; return the processes."""
    return _kill(lambda name: name == owner)


def end_all_under(owner: str, but: str = "") -> list[psutil.Process]:
    """Kill also what belongs to the owner's own parts; return the processes."""
    return _kill(
        lambda name: name != but and (name == owner or name.startswith(f"{owner}|")),
    )


def _kill(belongs: Callable[[str], bool]) -> list[psutil.Process]:
    """Kill until no new process turns up."""
    killed: list[psutil.Process] = []
    while left := [each for each in found(belongs) if each not in killed]:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += left
    psutil.wait_procs(killed, timeout=patient(30))
    return killed


def found(belongs: Callable[[str], bool]) -> list[psutil.Process]:
    """Return the processes of an owner, with descendants and the sessions that they lead."""
    roots = []
    running = set(psutil.pids())
    _foreign.intersection_update(running)
    for pid in running - _foreign:
        owner = _owner(pid)
        if not owner:
            _foreign.add(pid)
        elif pid != os.getpid() and belongs(owner):
            with contextlib.suppress(psutil.Error):
                roots.append(psutil.Process(pid))
    if not roots:
        return []
    family = {child for root in roots for child in _descendants(root)} | set(roots)
    sessions = {process.pid for process in family if _session(process.pid) == process.pid}
    members = {pid for pid in psutil.pids() if _session(pid) in sessions}
    for pid in members:
        with contextlib.suppress(psutil.Error):
            family.add(psutil.Process(pid))
    return [process for process in family if _is_alive(process)]


def _owner(pid: int) -> str | None:
    """Return who owns a process; none if it is none of a test's, or cannot be read."""
    try:
        return psutil.Process(pid).environ().get(VARIABLE)
    except (psutil.Error, OSError):
        return None


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
