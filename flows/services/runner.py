"""The runner: `python -P -m flows.services.runner FOLDER LIFELINE RUNS_AT_ONCE`.

A Prefect process worker on the pool `patchline`. Each flow run is a process that survives the
runner: when the supervisor starts the runner again, what went on goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_API_URL
from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.schedules import deployments
from flows.services import child, family
from pipeline.local_services import POOL, answers

NAME = "runner"
warnings.filterwarnings("ignore", "Type 'FolderWorker'")  # it takes the place of Prefect's own


class FolderJob(ProcessJobConfiguration):
    """How a flow run is started: in the folder, tied to the supervisor, with a log file."""

    def prepare_for_flow_run(self, *arguments: Any, **keywords: Any) -> None:
        """Fill in the command, unless the deployment has one of its own."""
        folder, line = Path(sys.argv[1]), Path(sys.argv[2])
        if self.command is None:
            self.command = command_to_string(family.command(family.FLOW_RUN, folder, line))
            self.stream_output = False  # a pipe to the runner would break when the runner dies
        if self.working_dir is None:
            self.working_dir = folder
        super().prepare_for_flow_run(*arguments, **keywords)


class FolderWorker(ProcessWorker):
    """A process worker that beats, and begins nothing while `patchline down` waits."""

    job_configuration = FolderJob

    async def get_and_submit_flow_runs(self) -> Any:
        """Ask for runs that are due, and start them."""
        folder = Path(sys.argv[1])
        child.beat(folder, NAME)
        if child.is_draining(folder):
            return []
        return await super().get_and_submit_flow_runs()


async def _work(runs_at_once: int) -> None:
    worker = FolderWorker(
        name=f"patchline on {os.uname().nodename}", work_pool_name=POOL, limit=runs_at_once
    )
    working = asyncio.ensure_future(worker.start())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _main() -> None:
    _, _, [runs_at_once] = child.begin()
    child.wait_until(lambda: answers(f"{PREFECT_API_URL.value()}/health"))
    deployments.follow_moved_flows()
    asyncio.run(_work(int(runs_at_once)))


if __name__ == "__main__":
    child.main(_main)
