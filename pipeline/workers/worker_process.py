"""Run a worker process in its own group, forward its events, and never leave it behind.

A worker is a module with a `__main__`, started as `python -P -m MODULE FOLDER` by the launcher of
the run (`launcher.py`), by default on this machine. The folder holds `job.json`; the worker writes
`events.jsonl`, `result.json` and `worker.log`. The parent keeps the worker's standard input open;
when the parent ends, however it ends, that pipe closes and the worker ends itself and everything
that it started.

Signals reach the main thread alone. A thread that waits for a worker looks here several times a
second, and stops its worker as on any other exception.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import psutil

from patchline.pipeline import redaction
from patchline.pipeline.errors import WorkerError, error_class
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.waiting import at_end_of_input
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event, EventWriter, OnEvent, read_events
from patchline.pipeline.workers.host import interruption
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workers.job_paths import paths_of
from patchline.pipeline.workers.launcher import GROUP_FILE, Resources, WorkerTask
from patchline.pipeline.workers.worker_start import LOG_FILE, WAIT, WAIT_TO_LEAD
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.workspace_folder import make_folder


class CancelledError(BaseException):
    """The block that a thread works for has ended; nobody but that block catches it."""


_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


@contextmanager
def cancellable() -> Iterator[threading.Event]:
    """Let threads that begin in the block, in a copy of its context, be cancelled by an event."""
    event = threading.Event()
    token = _cancelled.set(event)
    try:
        yield event
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise if the work of this thread was cancelled.

    Raises:
        CancelledError: if so.
    """
    event = _cancelled.get()
    if event is not None and event.is_set():
        raise CancelledError


Result = TypeVar("Result", bound=FrozenModel)
Job = TypeVar("Job", bound=FrozenModel)

JOB_FILE, EVENTS_FILE, RESULT_FILE, LOCK_FILE = (
    "job.json",
    "events.jsonl",
    "result.json",
    "worker.lock",
)
_POLL_SECONDS = 0.1
_FREE_GIB = 3.0
"""Free memory with which a worker may be started while another one computes. It takes 0.4 GB
as long as it waits, and the training must not run out of memory because of it."""
_LAST_WORKER_SECONDS = 60.0
_LONGEST_LINE = 2000
_AHEAD_SECONDS = 15.0
"""Imports take 3 to 6 seconds on an idle machine; this one is busy training."""


# -- the parent's side -------------------------------------------------------------------------


class WorkerFolder:
    """The folder through which the run and a worker talk: its job, its events and its result.

    Args:
        folder: the worker's folder; it is made if necessary.
        job: what to do; it is written, once no worker of an earlier attempt is left.
    """

    def __init__(self, folder: Path, job: FrozenModel) -> None:
        make_folder(folder)
        self._folder = folder
        self._events, self._log = AppendLog(folder / EVENTS_FILE), AppendLog(folder / LOG_FILE)
        self._log.skip()
        with storage_errors(folder), last_worker_gone(folder):
            for left in (RESULT_FILE, GROUP_FILE):
                (folder / left).unlink(missing_ok=True)
            job.to_file(folder / JOB_FILE)
            self._events.new_content()

    def new_events(self) -> Iterator[Event]:
        """Yield every event once, in order."""
        yield from self._events.new_values()
        for line in self._log.new_content().splitlines():
            if text := line.decode(errors="replace").strip():
                yield {"kind": "log", "message": text[:_LONGEST_LINE]}

    def result(self, code: int, worker: Worker[Any, Result]) -> Result:
        """Return the result of a worker once nothing is left of it.

        Args:
            code: the worker's exit code.
            worker: what was started.

        Raises:
            PipelineError: the error that the worker reported, by class and message.
            WorkerError: if the worker ended without a report.
        """
        file, log = self._folder / RESULT_FILE, self._folder / LOG_FILE
        if file.exists():
            return read_result(file, worker.result_class)
        raise make_early_end_error(f"The process {worker.module}", code, log)


@dataclass(frozen=True)
class Worker(Generic[Job, Result]):
    """A function that computes in a process of its own: what it takes, returns and needs.

    The module of the process ends with a call of `main`; the parent calls `run`.
    """

    module: str
    """Run as `python -P -m MODULE FOLDER`."""
    job_class: type[Job]
    """The class of the job in `job.json`."""
    result_class: type[Result]
    """The class of the result in `result.json`."""
    member_module: str | None = None
    """What other machines run if a group of processes is spread over several; see `WorkerTask`."""
    accelerator: bool = True
    """Whether it computes on the device of the run; otherwise on CPU cores alone."""
    from_start: bool = False
    """Whether it is started as soon as a run begins, before anything else needs memory."""

    @property
    def resources(self) -> Resources:
        """What the launcher of the run reserves for it while it waits for its job."""
        return Resources(gpus=None if self.accelerator else 0, memory_gib=_FREE_GIB)

    @property
    def code(self) -> tuple[str, ...]:
        """Modules in which the code begins that decides its result, if it computes with a model."""
        return f"{self.module}.__main__", "patchline.pipeline.models.layers"

    def prepare(self, resources: Resources | None = None) -> None:
        """Start it ahead of its job.

        Args:
            resources: the resources that the job will need; None if they are not known.
        """
        worker_start.current_launcher().prepare(self.module, resources or self.resources)

    def prewarm(self, resources: Resources | None = None) -> None:
        """Start it while another one computes, if there is memory for both; see `prepare`."""
        if psutil.virtual_memory().available >= _FREE_GIB * 2**30:
            self.prepare(resources)

    def run(
        self,
        folder: Path,
        job: Job,
        on_event: OnEvent = lambda _: None,
        resources: Resources = Resources(),  # noqa: B008 - a frozen value
    ) -> Result:
        """Run it to its end and return its result; `on_event` gets every event once, in order.

        Events of an earlier worker in the same folder are not included: see `earlier_events`. On
        any exception in the parent (a signal, an error in `on_event`) the worker's whole group is
        stopped before the exception propagates.

        Raises:
            PipelineError: the error that the worker reported, by class and message.
            WorkerError: if the worker ended without a report.
        """
        task, shared = self.task(folder, job, resources), WorkerFolder(folder, job)
        worker, code = worker_start.current_launcher().start(task), None
        try:
            while code is None:
                code = worker.poll()
                for event in shared.new_events():
                    on_event(event)
                if code is None:
                    check_cancelled()
                    time.sleep(_POLL_SECONDS)
        finally:
            worker.stop()
        return shared.result(code, self)

    def task(self, folder: Path, job: Job, resources: Resources) -> WorkerTask:
        """Return what a launcher is told of it, with the files that its job names."""
        return WorkerTask(
            self.module, folder.absolute(), resources, self.member_module, *paths_of(job)
        )

    def main(
        self,
        work: Callable[[Job, EventWriter], FrozenModel],
        introduced: Callable[[], str] = lambda: "{}",
    ) -> NoReturn:
        """In the process: do the job in the folder that the parent names, and write its result.

        Args:
            work: does the job.
            introduced: returns the introduction of a prepared worker, a JSON object.
        """
        redaction.install(streams=True)
        folder = _own_folder(introduced)
        at_end_of_input(worker_start.end_own_group)
        interruption.exit_on_sigterm()
        interruption.ignore_ctrl_c()
        job = self.job_class.from_file(folder / JOB_FILE)
        with last_worker_gone(folder):
            events = EventWriter(folder / EVENTS_FILE)
            content = report(folder, lambda: work(job, events))
            write_text(folder / RESULT_FILE, content)
        leave()


def prewarm_before_the_end(show: OnEvent, workers: Sequence[Worker[Any, Any]]) -> OnEvent:
    """Return a function that shows training events and starts the next workers before the end."""
    first: Event | None = None

    def see(event: Event) -> None:
        nonlocal first
        show(event)
        if event["kind"] != "progress":
            return
        first = first or event
        steps = event["done"] - first["done"]
        if steps > 0:
            seconds = (event["time"] - first["time"]) / steps
            soon = seconds * (event["total"] - event["done"]) <= _AHEAD_SECONDS
            for worker in workers if soon else ():
                worker.prewarm()

    return see


def earlier_events(folder: Path) -> list[Event]:
    """Return the events of earlier attempts in a folder, once their workers have ended."""
    if not (folder / EVENTS_FILE).exists():
        return []
    with last_worker_gone(folder):
        return read_events(folder / EVENTS_FILE)


@contextmanager
def last_worker_gone(folder: Path, lock: str = LOCK_FILE) -> Iterator[None]:
    """Wait for the worker of a parent that was killed, which ends by itself a moment later.

    Args:
        folder: the worker's folder.
        lock: name of the file in it that the worker holds.

    Raises:
        WorkerError: if it does not end within a minute.
    """
    with try_lock(folder / lock, _LAST_WORKER_SECONDS) as locked:
        if not locked:
            raise WorkerError(
                f"A process of an earlier attempt is still running in {folder}. End it, then retry."
            )
        yield


def read_result(file: Path, result_class: type[Result]) -> Result:
    """Return the result in a file that a worker wrote.

    Raises:
        PipelineError: the error that the worker reported instead, by class and message.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    if "error" in content:
        raise error_class(content["error"]["class"])(content["error"]["message"])
    return result_class.model_validate(content["result"])


def make_early_end_error(
    process: str, code: int, log: Path, after: str = "", remedy: str = ""
) -> WorkerError:
    """Return the error for a process that ended without a report.

    Args:
        process: the name of the process, which begins the message.
        code: the exit code; negative for a signal.
        log: its file, whose last line is shown.
        after: a clause that says what was tried before.
        remedy: a sentence that says what to do, after a space.
    """
    hint = " The machine may have run out of memory." if code == -signal.SIGKILL else ""
    return WorkerError(
        f"{process} {worker_start.describe_ending(code)} before it finished{after}.{hint}{remedy} "
        f"Its last log line: {worker_start.last_line(log, 300)!r}. See {log}."
    )


# -- the worker's side -------------------------------------------------------------------------


def _own_folder(introduced: Callable[[], str]) -> Path:
    """Return the folder of this worker's job: its argument, or what the parent sends later.

    A worker that the parent no longer needs ends here. From here on garbage is collected.
    """
    introduction = introduced() if sys.argv[1] == WAIT else "{}"
    gc.freeze()  # modules stay
    gc.enable()
    if sys.argv[1] not in (WAIT, WAIT_TO_LEAD):
        return Path(sys.argv[1])
    print(introduction, flush=True)  # noqa: T201 - the parent reads it
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(0)
    folder, working_directory = map(Path, json.loads(line))
    os.chdir(working_directory)  # the parent may have changed it since
    with (folder / LOG_FILE).open("ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    return folder


def report(folder: Path, work: Callable[[], FrozenModel]) -> str:
    """Do the work in a folder, and return its result or its error as a result file's content."""
    try:
        with storage_errors(folder):
            result = work()
    except Exception as error:
        known = system_error(error)
        if known is None:
            raise
        if known is not error:
            logging.getLogger(__name__).exception("the worker failed")
        return json.dumps({"error": {"class": type(known).__name__, "message": str(known)}})
    return f'{{"result": {result.model_dump_json()}}}'


def leave() -> NoReturn:
    """Exit at once: shutting down an interpreter with torch takes seconds, and all is written."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
