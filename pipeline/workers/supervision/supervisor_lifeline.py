"""A lock that the supervisor holds: every process of `patchline up` ends when it is released.

The operating system releases the lock of a process that ends, however it ends. A pipe would do the
same for direct children only. The runs that the runner starts must end with the supervisor, too,
but must survive the runner.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from patchline.pipeline.workspace.files.workspace_folder import make_folder

_FAILURE = 1


def hold_lifeline(file: Path) -> int:
    """Hold the lifeline while this process lives; return the open file that holds it."""
    import fcntl  # not available on Windows

    make_folder(file.parent)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def end_with_lifeline(file: Path) -> None:
    """End this process, and its group if it leads one, as soon as nobody holds the lifeline."""
    threading.Thread(target=_wait_and_end, args=(file,), daemon=True).start()


def _wait_and_end(file: Path) -> None:
    import fcntl

    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
    finally:  # a missing lifeline means the same as a released one
        if os.getpgid(0) == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(_FAILURE)
