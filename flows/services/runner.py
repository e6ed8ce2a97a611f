"""The runner: `python -P -m patchline.flows.services.runner FOLDER LIFELINE POOL MAX_RUNS`.

A Prefect process worker on the pool of the folder. Each flow run is a process that survives the
runner, so restarting the runner does not interrupt active runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from patchline.flows.prefect_api import folder_labels
from patchline.flows.services import service_processes, stopping
from patchline.pipeline.local_services import answers
from patchline.pipeline.workers import supervised_process

NAME = "runner"
_POLL_SECONDS = 0.5
warnings.filterwarnings("ignore", "Type 'FolderWorker'")  # it replaces Prefect's own worker type


class FolderJob(ProcessJobConfiguration):
    """How a flow run is started: in the folder, tied to the supervisor, with a log file."""

    def prepare_for_flow_run(self, *arguments: Any, **keywords: Any) -> None:
        """Fill in the command, unless the deployment has one of its own."""
        folder, lifeline = Path(sys.argv[1]), Path(sys.argv[2])
        if self.command is None:
            words = service_processes.command(service_processes.FLOW_RUN, folder, lifeline)
            self.command = command_to_string(words)
            self.stream_output = False  # a pipe to the runner would break when the runner dies
        if self.working_dir is None:
            self.working_dir = folder
        super().prepare_for_flow_run(*arguments, **keywords)


class FolderWorker(ProcessWorker):
    """A process worker with a heartbeat, which starts no run while `patchline down` waits.

    Of a pool that several machines use, it takes the runs of its own folder, and those of
    deployments that Patchline has not made.
    """

    job_configuration = FolderJob

    async def get_and_submit_flow_runs(self) -> Any:
        """Fetch the runs that are due, and start them."""
        folder = Path(sys.argv[1])
        supervised_process.beat(folder, NAME)
        if stopping.is_draining(folder):
            return []
        return await super().get_and_submit_flow_runs()

    async def _get_scheduled_flow_runs(self) -> list[WorkerFlowRunResponse]:
        due = await super()._get_scheduled_flow_runs()
        return [each for each in due if await self._may_take(each.flow_run)]

    async def _may_take(self, flow_run: FlowRun) -> bool:
        if flow_run.deployment_id is None:
            return True
        try:
            labels = (await self.client.read_deployment(flow_run.deployment_id)).labels
        except ObjectNotFound:
            return True
        return folder_labels.FOLDER not in labels or folder_labels.are_of(labels, Path())


async def _work(pool: str, max_concurrent_runs: int) -> None:
    worker = FolderWorker(
        name=f"patchline on {os.uname().nodename}", work_pool_name=pool, limit=max_concurrent_runs
    )
    working = asyncio.ensure_future(worker.start())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _main() -> None:
    _, _, [pool, max_concurrent_runs] = supervised_process.begin()
    while not answers(f"{PREFECT_API_URL.value()}/health"):
        time.sleep(_POLL_SECONDS)
    asyncio.run(_work(pool, int(max_concurrent_runs)))


if __name__ == "__main__":
    supervised_process.main(_main)
