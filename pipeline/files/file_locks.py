"""Locks on files: the one way in which processes of this machine exclude and detect each other.

The operating system releases a lock when its holder ends, however it ends. Checking a lock holds it
for a moment, so a holder that expects to be checked waits a few seconds instead of failing at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from pipeline.files.atomic_files import storage_errors
from pipeline.workspace import make_folder

_FOREVER = -1.0


def acquire(file: Path, wait_seconds: float = _FOREVER) -> BaseFileLock | None:
    """Acquire the lock on a file and return it; the caller releases it.

    Args:
        file: created with its folder if it does not exist.
        wait_seconds: how long to wait for another holder; without it, until the lock is free.

    Returns:
        None if another holder still has the lock after the wait.

    Raises:
        StorageError: if the file may not be written.
    """
    lock = FileLock(file, thread_local=False)
    with storage_errors(file):
        make_folder(file.parent)
        try:
            lock.acquire(timeout=wait_seconds)
        except Timeout:
            return None
    return lock


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock on a file while the block runs; wait until it is free.

    Raises:
        StorageError: if the file may not be written.
    """
    with try_lock(file, _FOREVER):
        yield


@contextmanager
def try_lock(file: Path, wait_seconds: float = 0.0) -> Iterator[bool]:
    """Hold the lock on a file while the block runs, if it can be acquired; yield whether it was.

    Args:
        file: created with its folder if it does not exist.
        wait_seconds: how long to wait for another holder.

    Raises:
        StorageError: if the file may not be written.
    """
    lock = acquire(file, wait_seconds)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def is_held(file: Path, wait_seconds: float = 0.0) -> bool:
    """Return whether a process holds the lock on a file; a file that does not exist has no holder.

    Args:
        file: is not created.
        wait_seconds: how long the lock must stay held. Two processes that check it at the same
            moment without a wait may both see it held.
    """
    if not file.exists():
        return False
    try:
        with FileLock(file, timeout=wait_seconds):
            return False
    except Timeout:
        return True
    except OSError:
        return True  # the file cannot be opened, which does not prove that its holder is gone
