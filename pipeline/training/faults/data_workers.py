"""The data-loader workers of the training process: why one died, and what a kill leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from patchline.pipeline.errors import WorkerError

_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ([^.]*)\.")
_POLLS, _POLL_SECONDS = 40, 0.05
_ENDED = re.compile(r"DataLoader worker .*exited unexpectedly(?: with exit code (\d+))?")


@contextmanager
def dead_workers_named() -> Iterator[None]:
    """Raise an error with the reason if a data-loader worker dies inside the block.

    Torch raises a plain `RuntimeError`, wherever the training process is at that moment; while it
    is fetching a batch, the connection to the worker may break first.

    Raises:
        WorkerError: names the signal or the exit code.
    """
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        reason = _reason(error if isinstance(error, RuntimeError) else _death_behind(error))
        if reason is None:
            raise
        raise WorkerError(
            f"A data-loader worker {reason}. The machine may have run out of memory: lower "
            "data.workers, or start the run again to resume training."
        ) from error


def _death_behind(error: Exception) -> Exception:
    """Return torch's error about the worker whose connection broke, once it can tell."""
    from torch._C import _error_if_any_worker_fails

    try:
        for _ in range(_POLLS):
            _error_if_any_worker_fails()
            time.sleep(_POLL_SECONDS)
    except RuntimeError as told:
        return told
    return error


def _reason(error: BaseException) -> str | None:
    """Return how a worker ended, as torch's error or an error before it says; None for others."""
    reason = None
    current: BaseException | None = error
    while current is not None:
        if killed := _KILLED.search(str(current)):
            return f"was killed by the signal '{killed[1].strip()}'"
        if ended := _ENDED.search(str(current)):
            code = int(ended[1]) if ended[1] else _exit_code(current)
            if code is not None and code < 0:
                return f"was killed by the signal '{signal.strsignal(-code)}'"
            reason = f"exited with code {code}" if code else reason or "exited unexpectedly"
        current = current.__cause__ or current.__context__
    return reason


def _exit_code(error: BaseException) -> int | None:
    """Return how a worker of the loader that raised an error has ended, if one has failed.

    Torch may notice that a worker is gone before it has asked the system why.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        workers = getattr(frame.f_locals.get("self"), "_workers", ())
        for code in (worker.exitcode for worker in workers):
            if code:
                return int(code)
    return None


def survive_kills() -> None:
    """Start the process that deletes this process's semaphores in a session of its own.

    The queues of the data-loader workers are named semaphores in /dev/shm. Python's resource
    tracker deletes them once everything that used them has ended, but by default it is in the
    process group of the training, which is killed as a whole.
    """
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001 - has no public way to be started
    if tracker._fd is not None or sys.platform == "win32":  # noqa: SLF001
        return
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"from multiprocessing.resource_tracker import main; main({reading})",
        ],
        pass_fds=[reading],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    tracker._fd, tracker._pid = writing, process.pid  # noqa: SLF001
