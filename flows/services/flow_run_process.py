"""One flow run of the runner: `python -P -m flows.services.flow_run_process FOLDER LIFELINE`.

It is Prefect's engine, in a group of its own and with a log of its own: the end of the runner does
not touch it, the end of the supervisor ends it.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from flows.services import child
from pipeline.local_services import logs_folder


def _main() -> None:
    if os.getpgid(0) != os.getpid():
        os.setsid()
    where = Path.cwd()
    folder, _, _ = child.begin()
    os.chdir(where)  # Prefect's working_dir, which may be another folder
    _write_to(logs_folder(folder) / "runs.log")
    sys.argv = ["prefect.engine"]
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _write_to(log: Path) -> None:
    """Let standard output and error go to a file that all runs append to."""
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), sys.stdout.fileno())
        os.dup2(stream.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    child.main(_main)
