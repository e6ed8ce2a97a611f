"""The supervisor: `python -P -m flows.services.supervisor FOLDER`.

It starts the servers, says when they are ready, starts again what dies or stops answering, and ends
everything when it is told to. It imports nothing heavy, so that little can go wrong with it.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import signal
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flows.services import lifeline, programs, restarts
from flows.services.managed_process import ManagedProcess
from flows.services.plan import Failure, Plan, failure_file, plan_file
from pipeline import local_login, redaction
from pipeline.errors import OrchestrationError, PipelineError, error_class
from pipeline.files.atomic_files import write_private_text, write_text
from pipeline.local_services import (
    Services,
    logs_folder,
    services_folder,
    state_file,
    supervisor_lock,
)

logger = logging.getLogger("supervisor")

_LOCK_SECONDS = 10.0
_START_SECONDS = 240.0
_FIRST_TURN_SECONDS, _TURN_SECONDS = 0.2, 0.5
_STOPPED_TURN_SECONDS = 10.0
_TIDY_SECONDS = 30.0
_LARGEST_LOG = 10 * 2**20
_PACKAGES = ("patchline", "prefect", "mlflow")
_ERROR = "Error: "


class Supervisor:
    """The processes of one folder."""

    def __init__(self, folder: Path, plan: Plan, line: Path) -> None:
        self._secret = local_login.ensure_secret(folder)
        self._servers = programs.Servers(folder, plan, line, self._secret)
        self._folder = folder
        self._plan = plan
        self._processes: dict[str, ManagedProcess] = {}
        self._stopping = threading.Event()

    def stop(self, *_: object) -> None:
        """Let `run` end; the handler of SIGTERM."""
        self._stopping.set()

    def run(self) -> None:
        """Start everything, keep it going, and end it.

        Raises:
            OrchestrationError: if something does not start.
        """
        try:
            self._start()
            if not self._stopping.is_set():
                self._say_where()
            self._keep_going()
        finally:
            logger.info("stopping")
            state_file(self._folder).unlink(missing_ok=True)
            self._end_all()
            local_login.forget(self._folder)
            logger.info("stopped")

    def _start(self) -> None:
        """Start all at once and wait until each has been seen well."""
        began = time.monotonic()
        for program in self._servers.first():
            self._add(ManagedProcess(program))
        waiting = set(self._processes)
        while waiting and not self._stopping.wait(_FIRST_TURN_SECONDS):
            for name in sorted(waiting):
                managed = self._processes[name]
                if managed.end_code() is not None:
                    self._replace(managed)
                elif managed.ask_now():
                    waiting.discard(name)
                    seconds = time.monotonic() - began
                    logger.info("%s is ready after %.1f s", self._servers.title(name), seconds)
            if waiting and time.monotonic() - began > _START_SECONDS:
                self._give_up(self._processes[min(waiting)], "does not answer")
        self._add(ManagedProcess(self._servers.keeper()))

    def _add(self, managed: ManagedProcess) -> None:
        self._processes[managed.program.name] = managed
        managed.start()

    def _replace(self, managed: ManagedProcess) -> None:
        """Start a server elsewhere if somebody has taken its port meanwhile; else give up."""
        program = self._servers.elsewhere(managed.program)
        if program is None:
            self._give_up(managed, f"ended with code {managed.end_code()} before it was ready")
            return
        logger.warning("%s", self._servers.notes[-1])
        self._add(ManagedProcess(program))

    def _give_up(self, managed: ManagedProcess, what: str) -> None:
        words = managed.last_words()
        if words.startswith(_ERROR):
            raise OrchestrationError(words.removeprefix(_ERROR))
        raise OrchestrationError(
            f"{self._servers.title(managed.program.name)} {what}. Its last words: {words!r}; the "
            f"rest is in {managed.program.log}."
        )

    def _say_where(self) -> None:
        """Write the file by which the other commands find the servers."""
        services = Services(
            folder=self._folder,
            pid=os.getpid(),
            prefect_url=self._servers.prefect_url,
            prefect_api_url=self._servers.prefect_api_url,
            mlflow_url=self._servers.mlflow_url,
            own=self._servers.own,
            started_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            versions={name: metadata.version(name) for name in _PACKAGES},
            notes=(*self._plan.notes, *self._servers.notes),
        )
        local_login.write_login(services, self._secret)
        write_private_text(state_file(self._folder), services.model_dump_json(indent=2))
        logger.info("ready: Prefect %s, MLflow %s", services.prefect_url, services.mlflow_url)

    def _keep_going(self) -> None:
        tidied = turned = time.monotonic()
        while not self._stopping.wait(_TURN_SECONDS):
            now = time.monotonic()
            if now - turned > _STOPPED_TURN_SECONDS:  # this process was stopped for a while
                for managed in self._processes.values():
                    managed.well_at = now
            turned = now
            for managed in self._processes.values():
                self._look(managed)
            if now - tidied > _TIDY_SECONDS:
                tidied = now
                _cut_logs(logs_folder(self._folder))

    def _look(self, managed: ManagedProcess) -> None:
        try:
            happened = managed.look()
        except OSError as error:
            happened = f"could not be started ({error})"
            managed.process = None
        if happened:
            logger.warning("%s %s", self._servers.title(managed.program.name), happened)
            if managed.process is None:
                _note(self._folder, managed.program.name, happened)

    def _end_all(self) -> None:
        """End those first that use the servers."""
        for names in (("keeper", "runner"), ("prefect", "mlflow")):
            chosen = [self._processes[name] for name in names if name in self._processes]
            for managed in chosen:
                managed.stop()
            for managed in chosen:
                managed.wait()


def _note(folder: Path, name: str, happened: str) -> None:
    try:
        restarts.note(folder, name, happened)
    except (PipelineError, OSError) as error:
        logger.warning("the restart could not be noted (%s)", error)


def _cut_logs(folder: Path) -> None:
    """Keep each log, and what it was before, below ten megabytes."""
    for log in folder.glob("*.log"):
        try:
            if log.stat().st_size > _LARGEST_LOG:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)  # all who write to it append
        except OSError as error:
            logger.warning("%s could not be cut (%s)", log.name, error)


def _report(folder: Path, error: PipelineError) -> None:
    logger.error("%s", error)
    known = error_class(type(error).__name__).__name__
    failure = Failure(error=known, message=str(error))
    write_text(failure_file(folder), failure.model_dump_json())


def _supervise(folder: Path) -> None:
    line = services_folder(folder) / f"lifeline-{os.getpid()}-{time.time_ns()}"
    held: Any = lifeline.hold(line)
    try:
        written = plan_file(folder)
        plan = Plan.model_validate_json(written.read_text(encoding="utf-8"))
        written.unlink()  # it may name servers of the user's with their passwords
        supervisor = Supervisor(folder, plan, line)
        signal.signal(signal.SIGTERM, supervisor.stop)
        supervisor.run()
    except PipelineError as error:
        _report(folder, error)
        sys.exit(error.exit_code)
    finally:
        line.unlink(missing_ok=True)
        os.close(held)


def _main() -> None:
    folder = Path(sys.argv[1])
    redaction.install(streams=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for stale in services_folder(folder).glob("lifeline-*"):
        stale.unlink(missing_ok=True)
    try:
        with FileLock(supervisor_lock(folder), timeout=_LOCK_SECONDS):
            _supervise(folder)
    except Timeout:
        logger.warning("another supervisor looks after %s", folder)


if __name__ == "__main__":
    _main()
