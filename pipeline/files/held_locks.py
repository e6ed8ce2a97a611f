"""Whether somebody holds a lock: how processes of one machine know of each other.

The lock is the operating system's, so it goes when its holder goes, in whatever way.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout


def is_held(file: Path) -> bool:
    """Return whether a process holds the lock on a file; a file that is not there has no holder.

    Who looks holds the lock for a moment, so two that look at once may both see it held.
    """
    if not file.exists():
        return False
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return True  # not to be opened: no reason to call its holder dead
