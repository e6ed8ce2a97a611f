"""Processes of a folder's services are found where it was moved, and collect their garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patchline.flows.services import service_processes
from tests.patience import patient

_ALLOCATING = """
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


def test_services_of_a_moved_folder_are_found_where_it_is_now(tmp_path: Path) -> None:
    """`patchline down` ends them there; in a copy of the folder it finds none."""
    folder, moved, copy = (tmp_path / name for name in ("first", "moved", "copy"))
    folder.mkdir()
    copy.mkdir()
    sleeping = [sys.executable, "-c", "import time; time.sleep(300)"]
    command = [*sleeping, *service_processes.command("supervisor", folder)[2:]]
    process = subprocess.Popen(command, cwd=folder)
    try:
        folder.rename(moved)
        assert [each.pid for each in service_processes.members(moved)] == [process.pid]
        assert not service_processes.members(copy)
        service_processes.clear(moved, 0.0)
        process.wait(timeout=patient(30))
    finally:
        process.kill()
        process.wait()


def test_garbage_is_collected_by_a_thread_of_its_own() -> None:
    """It cannot stop the event loop: the thread that allocates finalises no cycle."""
    program = _ALLOCATING.format(seconds=patient(20))
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.split() == ["True", "garbage"]
