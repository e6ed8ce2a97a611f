"""A lock that the supervisor holds: every process of `patchline up` ends when it is let go.

The operating system lets go of the lock of a process that ends in whatever way. A pipe would say
the same, but only to direct children; the runs that the runner starts have to end too, and must not
end with the runner.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from pipeline.workspace import make_folder

_FAILURE = 1


def hold(file: Path) -> int:
    """Hold the lifeline as long as this process lives; return what keeps it, an open file."""
    import fcntl  # not there on Windows

    make_folder(file.parent)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def end_with(file: Path) -> None:
    """End this process, and its group if it leads one, as soon as nobody holds the lifeline."""
    threading.Thread(target=_wait_and_end, args=(file,), daemon=True).start()


def _wait_and_end(file: Path) -> None:
    import fcntl

    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
    finally:  # a lifeline that is gone says the same as one that nobody holds
        if os.getpgid(0) == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(_FAILURE)
