"""How long tests wait before they call something hung: longer where the machine is slower.

No test measures speed. A deadline is there for what never comes, so it is generous on the reference
machine and multiplied here by one factor, which is measured once before the tests are collected.
`PATCHLINE_TEST_PATIENCE=8 make test` gives the factor instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "PATCHLINE_TEST_PATIENCE"
_WORK = "total = 0\nfor i in range(2_000_000): total += i * i % 7"
_REFERENCE_SECONDS = 0.3
"""How long two processes take for that work at the same time, on two idle cores of 2024."""
_LARGEST = 12.0


def measured() -> float:
    """Return how many times slower than the reference two processes are now: at least 1."""
    began = time.monotonic()
    command = [sys.executable, "-I", "-S", "-c", _WORK]
    started = [subprocess.Popen(command) for _ in range(2)]
    for process in started:
        process.wait()
    return min(max((time.monotonic() - began) / _REFERENCE_SECONDS, 1.0), _LARGEST)


def factor() -> float:
    """Return the factor of this session, which its first process measures for all of them."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{measured():.2f}"
    return max(float(os.environ[VARIABLE]), 1.0)


def patient(seconds: float) -> float:
    """Return the deadline that so many seconds on the reference machine mean here."""
    return seconds * factor()


def until(
    condition: Callable[[], Any],
    complaint: str | Callable[[], str],
    *,
    seconds: float = 120.0,
    pause: float = 0.1,
) -> None:
    """Wait until something is so; fail with the complaint when it never comes."""
    deadline = time.monotonic() + patient(seconds)
    while not condition():
        if time.monotonic() > deadline:
            words = complaint if isinstance(complaint, str) else complaint()
            raise AssertionError(f"{words} (waited {patient(seconds):.0f} s)")
        time.sleep(pause)
