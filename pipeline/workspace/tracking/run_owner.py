"""The owner of a run: it beats while it is alive, and stops when another process has taken over.

MLflow has no compare-and-set, but the params of a run can be written once: the store refuses a
second value for the same key, by a unique constraint in its database. So the n-th owner of a run is
whoever logs the param `patchline.owner.N` first, on SQLite, PostgreSQL or a server alike. The
process that opened the run is the first, and needs no param.

An owner that was suspended while its run was closed or taken over finds out at its next heartbeat,
before it logs anything: it continues a run that was only closed, and leaves one that was taken.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING

from patchline.pipeline.errors import RunError, TakenOverError
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workspace.tracking import liveness
from patchline.pipeline.workspace.tracking.liveness import HEARTBEAT_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

OWNER_PARAM = "patchline.owner."
_CLOSING_SECONDS = 10.0
_beats = itertools.count(1)


def number_of_owners(run: Run) -> int:
    """Return how many processes have owned a run; the last of them owns it."""
    claimed = (key.removeprefix(OWNER_PARAM) for key in run.data.params if _is_claim(key))
    return max(map(int, claimed), default=1)


def claim(store: MlflowClient, run: Run) -> int:
    """Become the next owner of a run, unless another process does so first.

    Args:
        store: the client of the store that holds the run.
        run: the run as it was when its owner was found dead.

    Returns:
        The number of this owner.

    Raises:
        RunError: if another process has become the owner since.
    """
    from mlflow.exceptions import MlflowException

    run_id, number = run.info.run_id, number_of_owners(run) + 1
    mine = f"{socket.gethostname()} {uuid.uuid4().hex[:12]}"
    with contextlib.suppress(MlflowException):  # it has another value: what follows reads it
        store.log_param(run_id, f"{OWNER_PARAM}{number}", mine)
    stored = store.get_run(run_id)
    if (
        stored.data.params.get(f"{OWNER_PARAM}{number}") != mine
        or number_of_owners(stored) != number
    ):
        raise RunError(
            f"Another process{_where(stored)} has just taken over the run {run_id[:8]} and resumes "
            "it. Wait until it ends, or stop it."
        )
    return number


def begin(store: MlflowClient, run_id: str, number: int = 1) -> Owner:
    """Beat for a run, in a thread, until the returned owner ends.

    Args:
        store: the client of the store that holds the run.
        run_id: MLflow's id of the run.
        number: the number of this owner, from 1.
    """
    owner = _owners[run_id] = Owner(store, run_id, number)
    return owner


def check(run_id: str) -> None:
    """Make sure that this process still owns a run that it opened, before it writes to it.

    It asks the store only if the last heartbeat is long ago, as after the process was suspended.

    Raises:
        TakenOverError: if another process owns it now.
    """
    if owner := _owners.get(run_id):
        owner.check()


def check_now(run_id: str) -> None:
    """Ask the store whether this process still owns a run that it opened; see `check`."""
    if owner := _owners.get(run_id):
        owner.verify()
        owner.check()


def beat() -> str:
    """Return a new heartbeat: the time, for people, and a count that makes it unique."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ} {next(_beats)}"


class Owner:
    """This process as the owner of one run."""

    def __init__(self, store: MlflowClient, run_id: str, number: int) -> None:
        self._store, self._run_id, self._number = store, run_id, number
        self._verified = _read_clock()
        self._writes = threading.Lock()
        self._lost = ""
        self._ends = Periodic(self.verify, liveness.BEAT_SECONDS).ended

    def end(self) -> bool:
        """Beat no more; return whether this process still owns the run and may close it."""
        self._ends.set()
        if self._writes.acquire(timeout=_CLOSING_SECONDS):  # a heartbeat cannot reopen it now
            self._writes.release()
        _owners.pop(self._run_id, None)
        with contextlib.suppress(Exception):  # a store that is away is closed with retries
            self.verify()
        return not self._lost

    def verify(self) -> None:
        """Read the run's owner, and beat if that is this process."""
        run = self._store.get_run(self._run_id)
        if number_of_owners(run) != self._number:
            self._lost = (
                f"Another process{_where(run)} has taken over the run {self._run_id[:8]} because "
                "this one gave no sign of life, so this one stops. Nothing is lost: the run "
                "continues there."
            )
            self._ends.set()
            return
        with self._writes:
            if self._ends.is_set():
                return
            if run.info.status != "RUNNING":
                logger.warning(
                    "The run %s was closed while this process was suspended; it continues.",
                    self._run_id[:8],
                )
                self._store.update_run(self._run_id, status="RUNNING")
            self._store.set_tag(self._run_id, HEARTBEAT_TAG, beat())
        self._verified = _read_clock()

    def check(self) -> None:
        """Raise if the run is lost."""
        if not self._lost and _read_clock() - self._verified > liveness.STALE_SECONDS / 2:
            self.verify()
        if self._lost:
            raise TakenOverError(self._lost)


_owners: dict[str, Owner] = {}
if hasattr(os, "register_at_fork"):  # a forked child owns nothing
    os.register_at_fork(after_in_child=_owners.clear)


def _read_clock() -> float:
    """Return seconds of a clock that keeps running while the machine sleeps."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()
    )


def _is_claim(key: str) -> bool:
    return key.startswith(OWNER_PARAM) and key.removeprefix(OWNER_PARAM).isdecimal()


def _where(run: Run) -> str:
    """Return on which machine the newest owner of a run is, to follow `another process`."""
    value = run.data.params.get(f"{OWNER_PARAM}{number_of_owners(run)}", "")
    host = value.partition(" ")[0]
    return f" on the machine {host}" if host and host != socket.gethostname() else ""
