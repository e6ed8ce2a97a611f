"""A worker of a pool: `python -P -m patchline.flows.work_pools.pool_worker FOLDER POOL MAX_RUNS`.

It starts flow runs of the pool in this folder. It ends when its standard input closes, with the
command that started it, and its runs end with it, however that happens. Like the keeper of
`patchline up`, it closes what killed processes left open and resumes interrupted runs, so that a
run of a machine that died continues on another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from patchline.flows.services.keeper import Duty
from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.local_services import services_folder
from patchline.pipeline.terminal_words import counted, visible
from patchline.pipeline.waiting import at_end_of_input
from patchline.pipeline.workers import supervised_process

MODULE = "patchline.flows.work_pools.pool_worker"
_RUN = "patchline.flows.work_pools.pool_run"
_POLL_SECONDS = 0.5
_DUTIES = (
    ("patchline.flows.closing.close_runs:close_abandoned_runs", 10.0),
    ("patchline.flows.schedules.deployments:drop_missed", 15.0),
    ("patchline.flows.schedules.deployments:continue_interrupted", 5.0),
)
warnings.filterwarnings("ignore", "Type 'PoolWorker'")  # it replaces Prefect's own worker type


class PoolJob(ProcessJobConfiguration):
    """How a flow run is started: in the worker's folder, tied to the worker's process."""

    def prepare_for_flow_run(self, *arguments: Any, **keywords: Any) -> None:
        """Fill in the command and the folder, unless the deployment has its own."""
        if self.command is None:
            words = [sys.executable, "-P", "-m", _RUN, str(Path.cwd()), str(_lifeline(Path.cwd()))]
            self.command = command_to_string(words)
        if self.working_dir is None:
            self.working_dir = Path.cwd()
        super().prepare_for_flow_run(*arguments, **keywords)


class PoolWorker(ProcessWorker):
    """A process worker that can wait until its runs have ended."""

    job_configuration = PoolJob
    is_draining = False

    async def get_and_submit_flow_runs(self) -> Any:
        """Fetch the runs that are due, and start them."""
        return [] if self.is_draining else await super().get_and_submit_flow_runs()

    @property
    def active(self) -> int:
        """How many runs it executes."""
        return int(self._limiter.borrowed_tokens) if self._limiter else 0


def command(folder: Path, pool: str, max_concurrent_runs: int) -> list[str]:
    """Return the command line of a worker."""
    return [sys.executable, "-P", "-m", MODULE, str(folder), pool, str(max_concurrent_runs)]


def _lifeline(folder: Path) -> Path:
    host = socket.gethostname().partition(".")[0]
    return services_folder(folder) / f"worker-{host}-{os.getpid()}.lifeline"


async def _work(pool: str, max_concurrent_runs: int) -> None:
    """Work until a signal arrives, then wait for the active runs; a second signal ends them."""
    worker = PoolWorker(
        name=f"{socket.gethostname()}-{os.getpid()}",
        work_pool_name=pool,
        limit=max_concurrent_runs,
        create_pool_if_not_found=False,
    )
    working = asyncio.ensure_future(worker.start())

    def end() -> None:
        if worker.is_draining or not worker.active:
            working.cancel()
            return
        worker.is_draining = True
        _say(f"Waiting for {counted(worker.active, 'active run')}; another Ctrl-C stops them.")

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    _say(f"Waiting for runs of the work pool {pool}.")
    while not working.done():
        await asyncio.wait([working], timeout=_POLL_SECONDS)
        if worker.is_draining and not worker.active:
            working.cancel()
    if not working.cancelled():
        working.result()


def _say(sentence: str) -> None:
    """Print a sentence; what is logged while Prefect sets up logging is lost."""
    print(sentence, file=sys.stderr, flush=True)


def _start_duties() -> None:
    for where, seconds in _DUTIES:
        __import__(where.partition(":")[0])  # threads that import the same modules can deadlock
        Duty(where, seconds).start()


def _main() -> None:
    folder, pool, max_concurrent_runs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    quiet_libraries.apply()
    redaction.install(streams=True)
    os.chdir(folder)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    lifeline = _lifeline(folder)
    held = supervised_process.hold_lifeline(lifeline)
    # The end releases the lifeline of its runs.
    at_end_of_input(lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        _start_duties()
        asyncio.run(_work(pool, max_concurrent_runs))
    except PipelineError as error:
        sys.stderr.write(f"Error: {visible(str(error), lines=True)}\n")
        sys.exit(error.exit_code)
    finally:
        lifeline.unlink(missing_ok=True)
        os.close(held)


if __name__ == "__main__":
    _main()
