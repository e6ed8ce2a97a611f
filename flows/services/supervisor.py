"""The supervisor: `python -P -m patchline.flows.services.supervisor FOLDER`.

It starts the services, reports when they are ready, restarts what dies or stops answering, and ends
everything on SIGTERM. It imports neither Prefect nor MLflow, so that it stays small and hardly
anything can end it.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

from patchline.flows.services import service_programs
from patchline.flows.services.service_programs import Failure, StartupPlan, failure_file, plan_file
from patchline.pipeline import local_services, redaction
from patchline.pipeline.errors import OrchestrationError, PipelineError, error_class
from patchline.pipeline.local_services import (
    Services,
    logs_folder,
    read_state,
    services_folder,
    state_file,
    supervisor_lock,
)
from patchline.pipeline.workers import supervised_process
from patchline.pipeline.workers.host import interruption
from patchline.pipeline.workers.supervised_process import SupervisedProcess
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.file_locks import try_lock

_FOLDER = "restarts"


def note(folder: Path, service: str, reason: str) -> None:
    """Write a note about a restart; of the reason only the part before the first semicolon."""
    file = services_folder(folder) / _FOLDER / f"{time.time_ns()}.json"
    write_text(file, json.dumps({"service": service, "reason": reason.partition(";")[0]}))


def announce() -> None:
    """Send an event for each note, once Prefect answers, and delete the note."""
    from patchline.flows.notifications import events
    from patchline.pipeline import local_services

    services = local_services.find_running()
    if services is None or not local_services.answers(f"{services.prefect_api_url}/health"):
        return  # events that are sent now would be lost
    for file in sorted((services_folder() / _FOLDER).glob("*.json")):
        noted = json.loads(file.read_text(encoding="utf-8"))
        resource = f"patchline.service.{noted['service']}"
        events.emit(events.SERVICES_RESTARTED, resource, noted)
        file.unlink(missing_ok=True)


logger = logging.getLogger("supervisor")

_LOCK_SECONDS = 10.0
_START_SECONDS = 240.0
_STARTING_POLL_SECONDS, _POLL_SECONDS = 0.2, 0.5
_SUSPENDED_SECONDS = 10.0
_LOG_CHECK_SECONDS = 30.0
_STATE_CHECK_SECONDS = 1.0
_MAX_LOG_BYTES = 10 * 2**20
_PACKAGES = ("patchline", "prefect", "mlflow")
_ERROR = "Error: "


class Supervisor:
    """The processes of one folder."""

    def __init__(self, folder: Path, plan: StartupPlan, lifeline: Path) -> None:
        supervised_process.remember_workspace(folder)
        self._secret = local_services.ensure_secret(folder)
        self._servers = service_programs.Servers(folder, plan, lifeline, self._secret)
        self._folder = folder
        self._plan = plan
        self._processes: dict[str, SupervisedProcess] = {}
        self._stopping = threading.Event()
        self._services: Services | None = None
        self._state_failure = ""

    def stop(self, *_: object) -> None:
        """End `run`; the handler of SIGTERM."""
        self._stopping.set()

    def run(self) -> None:
        """Start everything, keep it running until SIGTERM, and end it.

        Raises:
            OrchestrationError: if something does not start.
        """
        try:
            self._start()
            if not self._stopping.is_set():
                self._write_state()
            self._keep_running()
        finally:
            logger.info("stopping")
            if supervised_process.is_workspace_there(self._folder):
                state_file(self._folder).unlink(missing_ok=True)
            self._end_all()
            if supervised_process.is_workspace_there(self._folder):
                local_services.forget_login(self._folder)
            logger.info("stopped")

    def _start(self) -> None:
        """Start all at once, and wait until each is well."""
        began = time.monotonic()
        for program in self._servers.first():
            self._add(SupervisedProcess(program))
        waiting = set(self._processes)
        while waiting and not self._stopping.wait(_STARTING_POLL_SECONDS):
            for name in sorted(waiting):
                process = self._processes[name]
                if process.end_code() is not None:
                    self._replace(process)
                elif process.check_now():
                    waiting.discard(name)
                    seconds = time.monotonic() - began
                    logger.info("%s is ready after %.1f s", self._servers.title(name), seconds)
            if waiting and time.monotonic() - began > _START_SECONDS:
                self._give_up(self._processes[min(waiting)], "does not answer")
        self._add(SupervisedProcess(self._servers.keeper()))

    def _add(self, process: SupervisedProcess) -> None:
        self._processes[process.program.name] = process
        process.start()

    def _replace(self, process: SupervisedProcess) -> None:
        """Start a server on another port if its own was taken in the meantime; else give up."""
        program = self._servers.elsewhere(process.program)
        if program is None:
            self._give_up(process, f"exited with code {process.end_code()} before it was ready")
            return
        logger.warning("%s", self._servers.notes[-1])
        self._add(SupervisedProcess(program))

    def _give_up(self, process: SupervisedProcess, what: str) -> None:
        line = process.last_log_line()
        if line.startswith(_ERROR):
            raise OrchestrationError(line.removeprefix(_ERROR))
        raise OrchestrationError(
            f"{self._servers.title(process.program.name)} {what}. Its last log line: {line!r}. See "
            f"{process.program.log}."
        )

    def _write_state(self) -> None:
        """Write the file by which other commands find the servers."""
        services = Services(
            folder=self._folder,
            pid=os.getpid(),
            prefect_url=self._servers.prefect_url,
            prefect_api_url=self._servers.prefect_api_url,
            mlflow_url=self._servers.mlflow_url,
            own=self._servers.own,
            pool=self._plan.pool,
            of_tools=self._servers.of_tools,
            started_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            versions={name: metadata.version(name) for name in _PACKAGES},
            notes=(*self._plan.notes, *self._servers.notes),
        )
        local_services.write_login(services, self._secret)
        services.to_file(state_file(self._folder), is_private=True)
        self._services = services
        logger.info("ready: Prefect %s, MLflow %s", services.prefect_url, services.mlflow_url)

    def _restore_state(self) -> None:
        """Write the state, the secret and the login file again if one of them was damaged.

        Nothing is written while the path leads to no workspace, or to another one.
        """
        if self._services is None:
            return
        if not supervised_process.is_workspace_there(self._folder):
            self._warn_of_state(f"{self._folder} was moved or removed")
            return
        try:
            if read_state(self._folder) != self._services:
                logger.warning(
                    "the file %s was damaged and is written again", state_file(self._folder)
                )
                self._services.to_file(state_file(self._folder), is_private=True)
            if local_services.secret(self._folder) != self._secret:
                logger.warning("the secret was damaged and is written again")
                local_services.restore_login(self._services, self._secret)
        except (PipelineError, OSError) as error:
            self._warn_of_state(str(error))

    def _warn_of_state(self, why: str) -> None:
        if why != self._state_failure:  # once, while a disk stays full
            logger.warning("the state could not be written (%s)", why)
        self._state_failure = why

    def _all_were_well_at(self, now: float) -> None:
        for process in self._processes.values():
            process.well_at = now

    def _keep_running(self) -> None:
        logs_checked = state_checked = turned = time.monotonic()
        self._all_were_well_at(turned)  # the first to be ready was not asked while the rest started
        while not self._stopping.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now - turned > _SUSPENDED_SECONDS:  # this process itself was suspended
                self._all_were_well_at(now)
            turned = now
            for process in self._processes.values():
                self._check(process)
            if now - state_checked > _STATE_CHECK_SECONDS:
                state_checked = now
                self._restore_state()
            if now - logs_checked > _LOG_CHECK_SECONDS:
                logs_checked = now
                _rotate_logs(logs_folder(self._folder))

    def _check(self, process: SupervisedProcess) -> None:
        try:
            happened = process.check()
        except OSError as error:
            happened = f"could not be started ({error})"
            process.popen = None
        if happened:
            logger.warning("%s %s", self._servers.title(process.program.name), happened)
            if process.popen is None:
                _note(self._folder, process.program.name, happened)

    def _end_all(self) -> None:
        """End the clients of the servers first."""
        servers = ("prefect", "mlflow")
        for names in (self._processes.keys() - servers, servers):
            chosen = [self._processes[name] for name in names if name in self._processes]
            for process in chosen:
                process.stop()
            for process in chosen:
                process.wait()


def _note(folder: Path, name: str, happened: str) -> None:
    if not supervised_process.is_workspace_there(folder):
        return
    try:
        note(folder, name, happened)
    except (PipelineError, OSError) as error:
        logger.warning("the restart could not be noted (%s)", error)


def _rotate_logs(folder: Path) -> None:
    """Keep each log, and its previous part, below ten megabytes."""
    for log in folder.glob("*.log"):
        try:
            if log.stat().st_size > _MAX_LOG_BYTES:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)  # every writer appends
        except OSError as error:
            logger.warning("%s could not be rotated (%s)", log.name, error)


def _report(folder: Path, error: PipelineError) -> None:
    logger.error("%s", error)
    known = error_class(type(error).__name__).__name__
    failure = Failure(error=known, message=str(error))
    failure.to_file(failure_file(folder))


def _supervise(folder: Path) -> None:
    lifeline = services_folder(folder) / f"lifeline-{os.getpid()}-{time.time_ns()}"
    held = supervised_process.hold_lifeline(lifeline)
    try:
        written = plan_file(folder)
        plan = StartupPlan.from_file(written)
        written.unlink()  # it may contain addresses of the user's servers with passwords
        supervisor = Supervisor(folder, plan, lifeline)
        signal.signal(signal.SIGTERM, supervisor.stop)
        supervisor.run()
    except PipelineError as error:
        _report(folder, error)
        sys.exit(error.exit_code)
    finally:
        lifeline.unlink(missing_ok=True)
        os.close(held)


def _main() -> None:
    folder = Path(sys.argv[1])
    redaction.install(streams=True)
    interruption.ignore_ctrl_c()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for stale in services_folder(folder).glob("lifeline-*"):
        stale.unlink(missing_ok=True)
    with try_lock(supervisor_lock(folder), _LOCK_SECONDS) as locked:
        if locked:
            _supervise(folder)
        else:
            logger.warning("another supervisor already serves %s", folder)


if __name__ == "__main__":
    _main()
