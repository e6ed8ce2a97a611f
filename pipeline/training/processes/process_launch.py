"""Train in several processes, which torch's elastic agent starts, watches and starts again.

If one of them ends unexpectedly, the agent ends the others and starts all of them again; they
resume from the last checkpoint. If one is out of memory, they resume under a new agent. It runs in
the worker process of the training, and the processes end when it does, however it ends. They find
each other through files, and talk over the loopback interface only.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from torch import distributed

from patchline.pipeline.errors import ConfigError, WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.processes.rank import (
    MODULE,
    RANKS_FOLDER,
    RESTART_FILE,
    RESULT_FILE,
)
from patchline.pipeline.training.train_result import RefitResult, TrainResult
from patchline.pipeline.workers.worker_process import last_line, reported
from patchline.pipeline.workers.worker_start import LOG_FILE

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

_RESTARTS = 3
_GRACE_SECONDS = 2
_LOOPBACK = "127.0.0.1"
_BACKENDS = ("GLOO", "NCCL")


def train_in_processes(job: TrainingJob) -> FrozenModel:
    """Train in as many processes as the config asks for, and return the result of the job's part.

    Raises:
        ConfigError: if this machine cannot train in that many processes.
        PipelineError: the error that one of the processes reported.
        WorkerError: if they ended without a report more often than they may be restarted.
    """
    _check(job)
    folder = job.folder / RANKS_FOLDER
    try:
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                _launch(job, folder)
            except WorkerError:
                if not any((folder / name).exists() for name in (RESULT_FILE, RESTART_FILE)):
                    raise  # otherwise, a rank has said why
            if not (folder / RESTART_FILE).exists():
                return reported(folder / RESULT_FILE, _result_class(job))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _result_class(job: TrainingJob) -> type[TrainResult | RefitResult]:
    return RefitResult if job.part.refit else TrainResult


def _check(job: TrainingJob) -> None:
    """Check that this machine can train in the processes that the config asks for.

    Raises:
        ConfigError: if it cannot.
    """
    if not distributed.is_available():
        raise ConfigError(
            f"training.processes is {job.config.training.processes}, but this build of torch has "
            "no torch.distributed. Set training.processes to 1, or install another build of torch."
        )
    choose_device(job.config.training, detect_machine())


def _launch(job: TrainingJob, folder: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    for backend in _BACKENDS:
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", loopback_interface())
    # The agent would otherwise listen on all interfaces, for processes that need no such store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch finds unused parameters unusual
    command = ("-P", "-m", MODULE, str(job.folder), str(os.getpid()))
    logging.disable(logging.ERROR)  # the agent's own lines would hide the reason in the log
    try:
        elastic_launch(_launch_config(job, folder), sys.executable)(*command)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise WorkerError(_how_it_ended(job, rank, failure.exitcode)) from error


def _launch_config(job: TrainingJob, folder: Path) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.config.training.processes,
        run_id=job.run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr=_LOOPBACK,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        max_restarts=_RESTARTS,
        shutdown_timeout=_GRACE_SECONDS,
    )


def _how_it_ended(job: TrainingJob, rank: int, code: int) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    hint = " The machine may have run out of memory." if code == -signal.SIGKILL else ""
    log = job.folder / LOG_FILE
    return (
        f"Training process {rank + 1} of {job.config.training.processes} {how} before it "
        f"finished, even after {_RESTARTS} restarts.{hint} Lower training.processes, or start the "
        f"run again to resume training. Its last log line: {last_line(log)!r}. See {log}."
    )


def loopback_interface() -> str:
    """Return the name of the interface that no other machine can reach."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == _LOOPBACK for each in addresses):
            return name
    return "lo"
