"""Garbage is collected where it cannot stop the event loop of a server."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import patient

_PROGRAM = """
import gc, threading, time
from patchline.flows.services.garbage_collection import collect_in_own_thread

class Cycle:
    def __init__(self):
        self.own = self
        self.weight = [[] for _ in range(2000)]  # enough to set off an automatic collection
    def __del__(self):
        finalised.append(threading.current_thread().name)

finalised = []
collect_in_own_thread(0.05)
deadline = time.monotonic() + float({seconds})
while len(finalised) < 20 and time.monotonic() < deadline:
    Cycle()
    time.sleep(0.002)
print(len(finalised) >= 20, *sorted(set(finalised)))
"""


def test_garbage_is_collected_by_a_thread_of_its_own() -> None:
    """The thread that allocates finalises no cycle, however much it allocates."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(seconds=patient(20))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "garbage"], done.stderr
