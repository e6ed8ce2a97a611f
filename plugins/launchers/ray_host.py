"""What runs on a node of a Ray cluster: an actor that starts workers there, and ends them.

Workers are processes of the node, started as on any machine. They end with the actor, because their
standard input closes; and the actor ends them itself if its driver does not ask for half a minute.
Where the node does not see the folder of the run, its jobs come through the shared workspace.

Environment variables that go to nodes are named one by one, because others that begin with
`PATCHLINE_` are secrets, such as the token of a server.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import ray

from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workers.launcher import GROUP_FILE
from patchline.plugin_api import (
    LocalLauncher,
    PipelineError,
    Resources,
    RunningWorker,
    WorkerTask,
)
from patchline.plugins.launchers.remote_job import ReceivedJob, enter_workspace

LOST_SECONDS = 30.0
"""Without an answer for so long, a driver gives up the workers of a node, and a node those of the
driver."""
_WATCH_SECONDS = 1.0


def facts() -> dict[str, str]:
    """Return what has to be the same on all nodes."""
    return {"Patchline": metadata.version("patchline"), "Python": platform.python_version()}


def find_exposed_folder() -> str:
    """Return the folder of Ray on this node if other users can enter it; otherwise an empty text.

    Ray gives its folders mode 0777, sockets and logs included, so one above them has to be closed.
    """
    folder = Path(ray.get_runtime_context().get_temp_dir()).resolve()
    return "" if any(map(_is_closed, folder.parents)) else str(folder)


def _is_closed(folder: Path) -> bool:
    try:
        return folder.stat().st_mode & 0o077 == 0
    except OSError:  # not known
        return False


def _free_port(address: str) -> int:
    """Return a port that is free at an address of this node."""
    with socket.socket() as opened:
        opened.bind((address, 0))
        return int(opened.getsockname()[1])


class HostTask(NamedTuple):
    """A worker to start on a node."""

    number: int
    """By which the driver knows it."""
    module: str
    """The module that it runs."""
    folder: str
    """The folder with its job, as the machine of the run sees it."""
    job: str
    """The job's name in the shared workspace; empty if all nodes see the folder."""
    group: dict[str, Any]
    """Addresses of its `nodes`, and whether all of them see the folder; for all but the first of
    them, what the first has returned."""
    node: int
    """The index of the node in its group, from 0; all but the first work in folders of their own.
    """


class Host:
    """Starts workers on the node that Ray has placed it on.

    Args:
        cpus: cores that are reserved for it.
        environment: variables that workers inherit, see `environment_of_nodes`.
        module: the module of its first worker, which imports what it needs while its job is on the
            way.
        nodes: the number of nodes in the group in which that worker trains; on several, processes
            of its own compute.
    """

    def __init__(self, cpus: float, environment: dict[str, str], module: str, nodes: int) -> None:
        for key, value in environment.items():
            if key.startswith("PATCHLINE_"):
                os.environ[key] = value
            else:  # how this node reaches the store is its own matter
                os.environ.setdefault(key, value)
        # Ray limits it to the reserved cores; a whole node needs no limit.
        os.environ.pop("OMP_NUM_THREADS", None)
        if cpus < (os.cpu_count() or 1):
            os.environ["OMP_NUM_THREADS"] = os.environ["PATCHLINE_CORES"] = str(max(1, int(cpus)))
        self._uri, self._sees_workspace = environment.get(WORKSPACE_VARIABLE), False
        self._launcher = LocalLauncher(keeps_prepared=True)
        self._launcher.prepare(module, Resources(processes=nodes))
        self._workers: dict[int, RunningWorker] = {}
        self._jobs: dict[int, ReceivedJob] = {}
        self._last = time.monotonic()
        Periodic(self._watch, _WATCH_SECONDS)

    def introduce(self, file: str, content: str) -> dict[str, Any]:
        """Return where this is, and how it has the workspace.

        Args:
            file: the path of a file in the workspace, as the machine of the run sees it.
            content: the text in that file.
        """
        self.pulse()
        refused = ""
        with contextlib.suppress(OSError):
            self._sees_workspace = Path(file).read_text(encoding="utf-8") == content
        if self._sees_workspace:
            os.chdir(Path(file).parents[2])  # relative paths begin in the working directory
        elif self._uri:
            try:
                enter_workspace(self._uri)
            except (PipelineError, OSError) as error:
                refused = str(error)
        node = ray.get_runtime_context().get_node_id()
        return {
            "node": node,
            "sees_workspace": self._sees_workspace,
            "has_workspace": self._sees_workspace or bool(self._uri and not refused),
            "refused": refused,
            "exposed": find_exposed_folder(),
            **facts(),
        }

    def pulse(self) -> None:
        """Take note that the driver is alive."""
        self._last = time.monotonic()

    def prepare(self, module: str) -> str:
        """Let a worker import what a module needs, and return what it prints about this node."""
        self._launcher.prepare(module, Resources())
        return self._launcher.introduction(module, Resources())

    def start(self, task: HostTask) -> dict[str, Any]:
        """Start a worker; one of several if it trains on several nodes.

        Returns:
            What the other nodes of the group need to know, or the error.
        """
        self.pulse()
        number, group, index = task.number, task.group, task.node
        try:
            place = self._folder(task)
        except (PipelineError, OSError) as error:
            return {"error": {"class": type(error).__name__, "message": str(error)}}
        is_alone = len(group["nodes"]) == 1
        if not index and not is_alone:
            group["port"] = _free_port(group["nodes"][0])
        if not is_alone and not (index and group["shares_folder"]):
            (place / GROUP_FILE).write_text(json.dumps(group), encoding="utf-8")
        if index:
            place = _folder_of_member(place, index)
        self._workers[number] = self._launcher.start(WorkerTask(task.module, place))
        if number in self._jobs and not index:
            self._jobs[number].report()
        return {"group": group}

    def _folder(self, task: HostTask) -> Path:
        """Return the folder of a job on this node, with all that the job needs."""
        if self._sees_workspace or not task.job:
            return Path(task.folder)
        self._jobs[task.number] = ReceivedJob(task.job)
        return self._jobs[task.number].folder

    def poll(self, number: int) -> dict[str, Any]:
        """Return the exit code of a worker, None while it runs, and what has grown meanwhile."""
        self.pulse()
        worker, job = self._workers.get(number), self._jobs.get(number)
        code = worker.poll() if worker else None
        if worker is None or job is None or not job.reports:
            return {"code": code}
        if code is not None:
            worker.stop()  # so that nothing is written any more
            job.end()
        grown = job.grown()
        if code is not None and job.is_sent:
            return {"code": code, "grown": grown, "error": job.error}
        return {"code": None, "grown": grown}

    def stop(self, number: int) -> None:
        """End a worker with all that it has started."""
        self.pulse()
        worker, job = self._workers.pop(number, None), self._jobs.pop(number, None)
        if worker:
            worker.stop()
        if job:
            job.end(cancelled=True)
            job.remove()

    def _watch(self) -> None:
        """End with the driver, also where the network or the head of the cluster is lost."""
        if time.monotonic() - self._last < LOST_SECONDS:
            return
        for worker in list(self._workers.values()):
            worker.stop()
        self._launcher.close()
        os._exit(1)


def _folder_of_member(place: Path, index: int) -> Path:
    """Return the folder of a node that is not the first of its group, with its job."""
    own = place / f"node-{index}"
    own.mkdir(exist_ok=True)
    for left in ("result.json", "events.jsonl"):
        (own / left).unlink(missing_ok=True)
    named = {"folder": str(place), "node": index}
    (own / "job.json").write_text(json.dumps(named), encoding="utf-8")
    return own


WORKSPACE_VARIABLE = "PATCHLINE_WORKSPACE"
_OF_WORKERS = (
    "PATCHLINE_CACHE_LIMIT",
    "PATCHLINE_CORES",
    "PATCHLINE_NODE_FOLDER",
    "PATCHLINE_PLUGIN_FILES",
    WORKSPACE_VARIABLE,
)
"""What a worker reads; the machine of the run decides."""
_OF_STORES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Where an object store is; a node that says so itself keeps its own. Credentials are its own, too.
"""


def environment_of_nodes(environment: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the variables that go to each node.

    Args:
        environment: environment variables of the machine of the run.
        uri: address of the shared workspace; empty if it is a folder of one machine.
    """
    names = (*_OF_WORKERS, *_OF_STORES)
    sent = {name: environment[name] for name in names if name in environment}
    return {**sent, WORKSPACE_VARIABLE: uri} if uri else sent
