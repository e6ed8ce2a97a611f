"""The processors, and how many of them this process may use. A package holds this module."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import NamedTuple

_GROUPS = Path("/sys/fs/cgroup")


def usable_processors(groups: Path = _GROUPS) -> int:
    """Return the number of processors that this process may use, at least 1.

    The smallest of the processors it may run on and the quota of its container, if it has one: the
    libraries that compute see only those of the whole machine.

    Args:
        groups: the folder of the control groups, whose files hold the quota.
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


_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_ARM_FLAGS = ("asimddp", "i8mm", "bf16")


class Processor(NamedTuple):
    """A processor, and the instructions that low precision depends on."""

    name: str
    instructions: tuple[str, ...]

    @property
    def has_int8_products(self) -> bool:
        """Whether it adds int8 products in 32 bits, which cannot overflow."""
        return bool({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp"} & set(self.instructions))


def this_processor(cpu_information: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return the processor of this machine; without instructions where they are not known."""
    fallback = platform.processor() or platform.machine() or "unknown"
    try:
        text = cpu_information.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Processor(fallback, ())
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    known = tuple(flag for flag in (*_FLAGS, *_ARM_FLAGS) if flag in flags)
    return Processor(fields.get("model name") or fallback, known)
