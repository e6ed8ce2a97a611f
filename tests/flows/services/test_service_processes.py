"""Processes of a folder's services are found, also after the folder was moved under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from patchline.flows.services import service_processes
from tests.patience import patient


def test_services_of_a_moved_folder_are_found_where_it_is_now(tmp_path: Path) -> None:
    """`patchline down` ends them there; in a copy of the folder it finds none."""
    folder, moved, copy = (tmp_path / name for name in ("first", "moved", "copy"))
    folder.mkdir()
    copy.mkdir()
    sleeping = [sys.executable, "-c", "import time; time.sleep(300)"]
    command = [*sleeping, *service_processes.command("supervisor", folder)[2:]]
    process = subprocess.Popen(command, cwd=folder)
    try:
        assert _found(folder) == [process.pid]
        folder.rename(moved)
        assert _found(moved) == [process.pid]
        assert _found(copy) == []
        service_processes.clear(moved, 0.0)
        process.wait(timeout=patient(30))
    finally:
        if process.poll() is None:
            psutil.Process(process.pid).kill()
            process.wait()


def _found(folder: Path) -> list[int]:
    return [process.pid for process in service_processes.members(folder)]
