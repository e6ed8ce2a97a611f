"""One flow run of a worker: `python -P -m patchline.flows.work_pools.pool_run FOLDER LIFELINE`.

It is Prefect's engine in a process group of its own, which ends when the worker's process does. Its
output is the worker's.
"""

from __future__ import annotations

import os
import runpy
import sys

from patchline.pipeline.workers import supervised_process


def _main() -> None:
    if os.getpgid(0) != os.getpid():
        os.setsid()
    supervised_process.begin()
    sys.argv = ["prefect.engine"]
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    supervised_process.main(_main)
