"""One flow run: `python -P -m patchline.flows.services.flow_run_process FOLDER LIFELINE`.

It is Prefect's engine in a process group of its own, with a log file: it survives the runner and
ends with the supervisor.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from patchline.pipeline.local_services import logs_folder
from patchline.pipeline.plugin_system import tools
from patchline.pipeline.workers import supervised_process


def _main() -> None:
    if os.getpgid(0) != os.getpid():
        os.setsid()
    working_dir = Path.cwd()
    folder, _, _ = supervised_process.begin()
    os.chdir(working_dir)  # Prefect's working_dir, which may be another folder
    with (logs_folder(folder) / "runs.log").open("ab") as log:  # all runs append to it
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    tools.keep_former_paths()
    sys.argv = ["prefect.engine"]
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    supervised_process.main(_main)
