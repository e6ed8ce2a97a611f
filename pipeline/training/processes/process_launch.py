"""Train in several processes, which torch's elastic agent starts, watches and starts again.

If one of them ends unexpectedly, the agent ends the others and starts all of them again; they
resume from the last checkpoint. If one is out of memory, they resume under a new agent. It runs in
the worker process of the training, and the processes end when it does, however it ends. On one
machine they find each other through files, and talk over the loopback interface only; on several,
each has an agent (`member.py`), and they find each other through the store of the first.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from torch import distributed

from patchline.pipeline.errors import ConfigError, WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.processes.machines import NODE_VARIABLE, Machines
from patchline.pipeline.training.processes.rank import (
    MODULE,
    RANKS_FOLDER,
    RESTART_FILE,
    RESULT_FILE,
    take_words,
)
from patchline.pipeline.workers.worker_process import JOB_FILE, make_early_end_error, read_result
from patchline.pipeline.workers.worker_start import LOG_FILE

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.launcher.api import LaunchConfig

Result = TypeVar("Result", bound=FrozenModel)

THE_END = "end"
"""What the first machine says instead of the folder for the logs of an attempt."""
_RESTARTS = 3
_GRACE_SECONDS = 2
_JOIN_SECONDS = 90
"""Time for the agents of all machines to meet, also after a process was killed."""


def attempt_key(attempt: int) -> str:
    """Return the key under which the first machine says that it starts an attempt."""
    return f"attempt-{attempt}"


class ProcessGroup:
    """The processes of a training run, which are started for one job after another.

    As a context manager, it lets the other machines wait for the next job, and go in the end.

    Args:
        job: the job of the training run; its folder is that of the group.

    Raises:
        ConfigError: by `with`, if this machine cannot train in as many processes.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._machines = job, Machines.of(job.folder)
        self._folder, self._attempt = job.folder / RANKS_FOLDER, 0
        self._store: Store | None = None

    def __enter__(self) -> Self:
        _check(self._job, self._machines)
        if self._machines.are_several:
            self._store = self._machines.hold_store()
        return self

    def __exit__(self, *_: object) -> None:
        self._say(THE_END)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, job: TrainingJob, kind: type[Result]) -> Result:
        """Let all processes do a job, as `fit` does it, and return the result.

        Args:
            job: the job of the training run, or a part of it with a folder of its own.
            kind: class of the result.

        Raises:
            PipelineError: the error that one of the processes reported.
            WorkerError: if they ended without a report more often than they may be restarted.
        """
        machines, shared = self._machines, self._folder
        while True:
            empty_folder(self._job.folder, job)
            name = f"{self._job.run_id}-{self._attempt}"
            self._say(name)
            try:
                run_agent(self._job, machines, name, node=0, logs=shared / "logs")
            except WorkerError:
                take_words(shared, job.folder, machines.said(name))
                if not any((shared / name).exists() for name in (RESULT_FILE, RESTART_FILE)):
                    raise  # otherwise, a rank has said why
            self._attempt += 1
            if not (shared / RESTART_FILE).exists():
                return read_result(shared / RESULT_FILE, kind)

    def _say(self, name: str) -> None:
        """Tell the other machines the name of an attempt that starts, or that there is none."""
        if self._store is not None:
            self._store.set(attempt_key(self._attempt), name)


def empty_folder(folder: Path, job: TrainingJob) -> None:
    """Leave nothing but the next job in what the ranks share, in the folder of a training run."""
    shared = folder / RANKS_FOLDER
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    job.to_file(shared / JOB_FILE)


def _check(job: TrainingJob, machines: Machines) -> None:
    """Check that this machine can train in the processes that the config asks for.

    Raises:
        ConfigError: if it cannot.
    """
    if not distributed.is_available():
        raise ConfigError(
            f"training.processes is {job.config.training.processes}, but this build of torch has "
            "no torch.distributed. Set training.processes to 1, or install another build of torch."
        )
    choose_device(job.config.training, detect_machine(), len(machines.nodes))


def run_agent(job: TrainingJob, machines: Machines, name: str, node: int, logs: Path) -> None:
    """Run torch's agent of one machine, with its part of the processes, to their end.

    Args:
        job: the job of the training run.
        machines: all machines of the group.
        name: the name of the attempt, the same on all machines.
        node: the number of this machine, from 0.
        logs: folder for the agent's own logs.

    Raises:
        WorkerError: if a process ended without a report more often than it may be restarted.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    machines.name_interfaces(node)
    os.environ[NODE_VARIABLE] = str(node)
    # The agent would otherwise listen on all interfaces, for processes that need no such store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch finds unused parameters unusual
    command = ("-P", "-m", MODULE, str(job.folder), str(os.getpid()))
    launch = elastic_launch(_launch_config(job, machines, name, node, logs), sys.executable)
    try:
        with _quiet_agent():
            launch(*command)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise make_early_end_error(
            f"Training process {rank + 1} of {job.config.training.processes}",
            failure.exitcode,
            job.folder / LOG_FILE,
            f", even after {_RESTARTS} restarts",
            " `patchline run --resume last` continues the run, in fewer processes with "
            "--training.processes.",
        ) from error
    except RendezvousError as error:
        raise WorkerError(
            f"The processes of the training on {', '.join(machines.nodes)} did not meet within "
            f"{_JOIN_SECONDS} seconds ({type(error).__name__}). Make sure that the nodes reach "
            "each other, then resume the run."
        ) from error


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Take the agent's own lines out of the log, where they would hide the reason of an error.

    Afterwards, this process logs again, and has the signal handlers that the agent replaces.
    """
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _launch_config(
    job: TrainingJob, machines: Machines, name: str, node: int, logs: Path
) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    processes = job.config.training.processes
    meeting: dict[str, object] = {"store_type": "file"}
    endpoint = str(job.folder / RANKS_FOLDER / "rendezvous")
    if machines.are_several:
        meeting = {"is_host": False, "join_timeout": _JOIN_SECONDS}
        endpoint = machines.endpoint
    return LaunchConfig(
        min_nodes=len(machines.nodes),
        max_nodes=len(machines.nodes),
        nproc_per_node=machines.processes_each(processes),
        run_id=name,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs=meeting,
        local_addr=machines.nodes[node],
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        max_restarts=_RESTARTS,
        shutdown_timeout=_GRACE_SECONDS,
    )
