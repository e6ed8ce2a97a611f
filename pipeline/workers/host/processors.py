"""How many processors this process may use, in a container too. A package holds this module."""

from __future__ import annotations

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def usable_processors(groups: Path = _GROUPS) -> int:
    """Return the number of processors that this process may use, at least 1.

    The smallest of the processors it may run on and the quota of its container, if it has one: the
    libraries that compute see only those of the whole machine.

    Args:
        groups: where the system tells quotas.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota(groups))))


def _quota(groups: Path) -> float:
    """Return the quota in processors; infinite if there is none."""
    try:
        quota, period = (groups / "cpu.max").read_text(encoding="utf-8").split()[:2]
    except (OSError, ValueError):  # the older version of control groups
        try:
            quota, period = (
                (groups / "cpu" / name).read_text(encoding="utf-8").strip()
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        except OSError:
            return math.inf
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return share if share > 0 else math.inf


def default_threads() -> int:
    """Return how many threads compute unless told otherwise.

    That is `OMP_NUM_THREADS` where it is set, which most numerical libraries follow, and otherwise
    one for each processor that this process may use.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    return int(given) if given.isdigit() and int(given) > 0 else usable_processors()
