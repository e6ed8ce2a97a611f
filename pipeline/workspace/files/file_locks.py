"""Locks on files: the one way in which processes of this machine exclude and detect each other.

The operating system releases a lock when its holder ends, however it ends. Checking a lock holds it
for a moment, so a holder that expects to be checked waits a few seconds instead of failing at once.

A file that exists is complete. One process makes it while the others wait; what a killed process
left behind is deleted, and the file is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder

_FOREVER = -1.0
_PAUSE_SECONDS = 0.05


def acquire(file: Path, wait_seconds: float = _FOREVER) -> BaseFileLock | None:
    """Acquire the lock on a file and return it; the caller releases it.

    Args:
        file: the file to lock, which is created with its folder if it does not exist.
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
def hold_lock(file: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock on a file while the block runs; wait until it is free.

    Args:
        file: the file to lock, which is created with its folder if it does not exist.
        on_wait: called once if another holder has the lock.

    Raises:
        StorageError: if the file may not be written.
    """
    with try_lock(file) as free:
        if free:
            yield
            return
    if on_wait:
        on_wait()
    with try_lock(file, _FOREVER):
        yield


@contextmanager
def try_lock(file: Path, wait_seconds: float = 0.0) -> Iterator[bool]:
    """Hold the lock on a file while the block runs, if it can be acquired; yield whether it was.

    Args:
        file: the file to lock, which is created with its folder if it does not exist.
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


class Liveness(Enum):
    """What is known about whoever holds a lock, or owns a run."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """No evidence; then nothing is closed, taken over or deleted."""


def holder_of(file: Path, wait_seconds: float = 0.0, of_identity: str | None = None) -> Liveness:
    """Return whether a process holds the lock on a file.

    The check itself is a shared lock where the system has such (not on Windows): any number of
    processes may check at the same time, and see the holder and not each other.

    Args:
        file: the locked file, which is not created; it may belong to another user, and be
            read-only.
        wait_seconds: how long the lock must stay held, because whoever removes what a dead holder
            left behind holds the lock for a moment.
        of_identity: the identity of the lock that the holder has recorded (`identity`); a free lock
            with another one, or with none, says nothing about that holder.

    Returns:
        UNKNOWN if the file is missing or may not be opened, which says nothing about a holder.
    """
    check = _by_holding if sys.platform == "win32" else _by_sharing
    found = check(file, wait_seconds)
    is_it = of_identity is None or (bool(of_identity) and of_identity == identity(file))
    return found if found is Liveness.ALIVE or is_it else Liveness.UNKNOWN


def _by_sharing(file: Path, wait_seconds: float) -> Liveness:
    import fcntl  # not available on Windows

    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Liveness.UNKNOWN
    deadline = time.monotonic() + wait_seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return Liveness.ALIVE
                time.sleep(_PAUSE_SECONDS)
            else:
                return Liveness.DEAD
    except OSError:
        return Liveness.UNKNOWN
    finally:
        os.close(handle)


def _by_holding(file: Path, wait_seconds: float) -> Liveness:
    """Check where there are no shared locks: hold the lock for a moment."""
    try:
        file.stat()
        with FileLock(file, timeout=wait_seconds):
            return Liveness.DEAD
    except Timeout:
        return Liveness.ALIVE
    except OSError:
        return Liveness.UNKNOWN


def is_held(file: Path, wait_seconds: float = 0.0) -> bool:
    """Return whether a process of this machine holds the lock on a file; see `holder_of`.

    For files of this user's own folder, where a missing file has no holder. Whether the owner of a
    run is alive is decided by `patchline.pipeline.workspace.tracking.liveness`.
    """
    return holder_of(file, wait_seconds) is Liveness.ALIVE


def identity(file: Path) -> str:
    """Return what tells the lock on this file from any other lock: kernel, device and file number.

    Whoever sees the same identity at the same path sees the same lock, whatever the names of the
    machine and of the container are. A copy of the file, the same path in another container, and
    the same file on another machine have other identities.

    Returns:
        An empty string if it cannot be had.
    """
    try:
        status = file.stat()
    except OSError:
        return ""
    kernel = read_kernel_id()
    return f"{kernel} {status.st_dev} {status.st_ino}" if kernel else ""


def same_file(file: Path, of_identity: str) -> bool:
    """Return whether a file has the file number of an identity, maybe on another machine."""
    try:
        return of_identity.rpartition(" ")[2] == str(file.stat().st_ino)
    except OSError:
        return False


@functools.cache
def read_kernel_id() -> str:
    """Return the id of the running kernel, which changes with each boot.

    Containers on one machine share it, and machines with the same name do not. Where the system has
    no such id, the name and the network address of the machine stand for it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return ""
    return f"{socket.gethostname()}-{uuid.getnode():x}"


_LEFT_BEHIND = ".*.part"
_RECENT_NANOSECONDS = 2 * 10**9
"""A file system may give a change that soon after another one the same time."""


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return a file, and make it if it does not exist.

    Args:
        target: the file; its folder holds nothing but such files.
        make: a function that writes the file at the path that it is given.

    Raises:
        StorageError: if the folder may not be written, or the disk is full.
    """
    if target.exists():
        return target
    with hold_lock(target.parent / "making.lock"):
        if not target.exists():
            for file in target.parent.glob(_LEFT_BEHIND):
                file.unlink(missing_ok=True)
            with replace_file(target) as temporary:
                make(temporary)
    return target


def known_digest(file: Path, folder: Path) -> str:
    """Return the SHA-256 of a file, computed again only if its size or its date has changed.

    Args:
        file: any file.
        folder: the folder that keeps a record for each file.
    """
    status = file.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    facts = [str(file.resolve()), status.st_size, *times, status.st_ino]
    name = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    record = folder / f"{name}.json"
    if known := FileDigest.from_file_or_none(record):
        return known.sha256
    digest = digest_of(file)
    if time.time_ns() - max(times) > _RECENT_NANOSECONDS:
        digest.to_file(record)
    return digest.sha256
