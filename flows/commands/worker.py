"""The command `patchline worker`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from patchline.flows.prefect_session import connected
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.tracking.tracking_store import use_store


def worker(*, work_pool: str, max_concurrent_runs: int = 1) -> int:
    """Execute scheduled runs of a work pool in this folder, until Ctrl-C.

    Parameters
    ----------
    work_pool
        Name of the work pool, as in `patchline schedule create --work-pool`; created if it does
        not exist.
    max_concurrent_runs
        Maximum concurrent runs of this worker.
    """
    if max_concurrent_runs < 1:
        raise ConfigError(
            f"--max-concurrent-runs {max_concurrent_runs} allows no run. Choose 1 or more."
        )
    with connected():
        from patchline.flows.schedules import work_pools
        from patchline.flows.work_pools import pool_worker

        work_pools.ensure(work_pools.checked_name(work_pool), served_here=True)
        use_store()  # the runs use the same, and sign in
        environment = dict(os.environ)
        command = pool_worker.command(Path.cwd().resolve(), work_pool, max_concurrent_runs)
    return _followed(command, environment)


def _followed(command: list[str], environment: dict[str, str]) -> int:
    """Run a process that ends with this one, pass signals on to it, and return its exit code."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: process.send_signal(received))
        return process.wait()
