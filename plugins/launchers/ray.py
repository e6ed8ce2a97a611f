"""A Ray cluster: stages compute where there is room, training on one or several nodes.

Ray allocates; what runs is the same worker processes as on this machine, and torch's own agent for
those that train together. This process never connects to Ray: a driver process does
(`ray_driver.py`), and this module talks to it.

Both write lines of JSON. The driver (`ray_driver.py`) ends when its standard input closes, so it
and all that it has started end with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from patchline.pipeline.waiting import wait_until
from patchline.plugin_api import (
    ConfigError,
    DataError,
    LauncherContext,
    LauncherPlugin,
    PluginConfig,
    PluginError,
    Resources,
    StorageError,
    WorkerError,
    WorkerTask,
)
from patchline.plugins.launchers.remote_job import SentJob, workspace_uri

if TYPE_CHECKING:
    from collections.abc import Iterator


class RayConfig(PluginConfig):
    """Settings."""

    address: Annotated[str, Field(min_length=1)] = "auto"
    """Address of the cluster's head, HOST:PORT; auto for the one that this machine belongs to. The
    token is read from RAY_AUTH_TOKEN, or from the file in RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.
    """

    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of nodes over which the processes of a training run are spread."""

    cpus: Annotated[float, Field(gt=0)] | None = None
    """CPU cores that a worker reserves on a node; null for all cores of a node."""

    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that a training run reserves in total; null for one per process where there are as many.
    """

    memory_gib: Annotated[float, Field(ge=0)] = 0.0
    """Memory in GiB that a worker reserves on a node; 0 reserves none."""

    shared_folder: bool = False
    """Whether all nodes mount the working directory at the same path, such as from NFS or Lustre;
    each node proves that it reads the workspace. It is not needed if the workspace is on an object
    store, through which files then travel. Otherwise, several nodes are refused."""


_DRIVER = "patchline.plugins.launchers.ray_driver"
_LOG_FILE = "driver.log"
_STOP_SECONDS = 40.0
"""For stopping a worker on a node that answers; longer than the driver waits for it."""
_SILENCE_SECONDS = 60.0
"""Without a sign of life from the driver, which sends one every two seconds."""
_POLL_SECONDS = 0.02
_ERRORS = {each.__name__: each for each in (ConfigError, DataError, PluginError, StorageError)}


@dataclass
class _Told:
    """What the driver has said so far."""

    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last answer to each question, by number."""
    grown: dict[int, deque[dict[str, Any]]] = field(default_factory=dict)
    """Additions to the events and the log of each worker on another machine that nobody has taken
    yet, by the worker's number."""
    ready: dict[str, Any] | None = None
    failure: dict[str, str] | None = None
    """Class and sentence of the error that ended the driver."""
    last: float = field(default_factory=time.monotonic)
    has_ended: bool = False


class RayLauncher:
    """Run workers on the nodes of a Ray cluster.

    The cluster is contacted when the first worker is needed.

    Args:
        config: the settings.
        context: the launcher's context, which has the workspace. Nodes that do not see that folder
            get their jobs through the store, if the workspace is shared.
        wait_seconds: how long to wait until nodes have the requested resources.
    """

    def __init__(
        self, config: RayConfig, context: LauncherContext, wait_seconds: float = 300.0
    ) -> None:
        self._config, self._workspace = config, context.workspace
        self._wait_seconds = wait_seconds
        self.machines = config.nodes
        self._uri = ""
        self._process: subprocess.Popen[str] | None = None
        self._told = _Told()
        self._numbers = itertools.count(1)
        self._introductions: dict[str, int] = {}

    # -- what a launcher does ------------------------------------------------------------------

    def prepare(self, module: str, resources: Resources) -> None:
        """Connect to the cluster, and let a node import what a module needs; without waiting."""
        if module not in self._introductions:
            self._introductions[module] = self._ask("prepare", module, resources)

    def introduction(self, module: str, resources: Resources) -> str:
        """Return what a prepared worker has printed about the node that it runs on.

        Raises:
            WorkerError: if no node has the requested resources in time, or its node is lost.
            ConfigError: if no node is large enough, or one lacks what the run needs.
        """
        self.prepare(module, resources)
        number = self._introductions[module]
        while (answer := self.state_of(number)) is None:
            time.sleep(_POLL_SECONDS)
        return str(answer["introduction"])

    def slots(self, resources: Resources) -> int:
        """Return how many workers with the resources fit on the nodes at the same time.

        Without a number of cores, a worker reserves those of the largest node.
        """
        cores = [float(each["cpus"]) for each in self._ready()["nodes"]]
        each = self._config.cpus or resources.cpus or max(cores, default=1.0)
        return max(1, sum(int(there // each) for there in cores))

    def start(self, task: WorkerTask) -> RayWorker:
        """Start a worker on a node, as soon as one has the resources for it."""
        self._introductions.pop(task.module, None)
        ready = self._ready()
        sent = SentJob(task) if self._travels(ready) else None
        name = sent.name if sent else ""
        more = {"folder": str(task.folder), "member": task.member_module, "job": name}
        number = self._ask("start", task.module, task.resources, **more)
        return RayWorker(self, number, sent)

    def shares_workspace(self) -> bool:
        """Return whether all nodes see the folder of the run."""
        return not self._travels(self._ready())

    def _travels(self, ready: dict[str, Any]) -> bool:
        """Return whether a node may not see the folder of the run."""
        return bool(len(ready["nodes"]) > 1 and self._uri and not self._config.shared_folder)

    def close(self) -> None:
        """End the driver, and with it all workers."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed
                process.wait(_STOP_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # -- the driver ----------------------------------------------------------------------------

    def state_of(self, number: int) -> dict[str, Any] | None:
        """Return what is known about a worker: its code, or that it was stopped; or None.

        Raises:
            WorkerError: if the worker or the cluster is lost.
        """
        if number not in self._told.answers:
            self._check_alive()
        answer = self._told.answers.get(number, {})
        if "error" in answer:
            raise _error(answer["error"])
        if "lost" in answer:
            raise WorkerError(answer["lost"])
        return answer or None

    def grown(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield by how much events and log of a worker have grown, each once."""
        waiting = self._told.grown.get(number, ())
        while waiting:
            yield waiting.popleft()

    def stop(self, number: int) -> None:
        """Stop a worker and wait until it has ended."""
        if self._process is None or self._told.has_ended:
            return
        self._say({"do": "stop", "number": number})
        wait_until(
            lambda: self._told.has_ended or self._told.answers.get(number, {}).get("stopped"),
            _POLL_SECONDS,
            _STOP_SECONDS,
        )

    def _ready(self) -> dict[str, Any]:
        """Wait until the driver is connected, and return what it says of the cluster."""
        self._driver()
        while self._told.ready is None:
            self._check_alive()
            time.sleep(_POLL_SECONDS)
        return self._told.ready

    def _check_alive(self) -> None:
        """Refuse to wait for a driver that has ended, or that has not said anything for a minute.

        Raises:
            PipelineError: why it has ended.
        """
        if self._told.failure:
            raise _error(self._told.failure)
        silent = time.monotonic() - self._told.last > _SILENCE_SECONDS
        if self._told.has_ended or silent:
            raise WorkerError(
                f"The Ray cluster at {self._config.address} cannot be reached any more. Start its "
                "head and nodes again (`ray start`), then resume the run. "
                f"See {self._workspace / 'ray' / _LOG_FILE}."
            )

    def _ask(self, what: str, module: str, resources: Resources, **more: object) -> int:
        number = next(self._numbers)
        needs = asdict(resources)
        self._say({"do": what, "number": number, "module": module, "needs": needs, **more})
        return number

    def _say(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a driver that has ended is noticed where it is read
            print(json.dumps(line), file=self._driver().stdin, flush=True)

    def _driver(self) -> subprocess.Popen[str]:
        if self._process is None:
            if importlib.util.find_spec("ray") is None:
                raise PluginError(
                    "The launcher 'ray' needs Ray, which is not installed. Install it with "
                    "`pip install 'patchline[ray]'`."
                )
            self._uri = workspace_uri()
            folder = self._workspace / "ray"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (folder / _LOG_FILE).open("a", encoding="utf-8") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _DRIVER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"},
                )
            self._told = _Told()
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
            place = {"workspace": str(self._workspace), "uri": self._uri}
            waits = {"wait_seconds": self._wait_seconds}
            self._say({**self._config.model_dump(), **place, **waits})
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        told = self._told
        for line in process.stdout or ():
            told.last = time.monotonic()
            with contextlib.suppress(ValueError):  # a line that a library has printed
                said = json.loads(line)
                if "ready" in said:
                    told.ready = said["ready"]
                elif "failure" in said:
                    told.failure = said["failure"]
                elif "grown" in said:
                    told.grown.setdefault(said["number"], deque()).append(said["grown"])
                elif "number" in said:
                    told.answers[said["number"]] = {
                        **told.answers.get(said["number"], {}),
                        **said,
                    }
        told.has_ended = True


class RayWorker:
    """A worker on a node of the cluster, or one on each of several.

    Args:
        launcher: the launcher that has started it.
        number: the number by which the driver knows it.
        sent: its job, if it may run where this folder is not seen.
    """

    def __init__(self, launcher: RayLauncher, number: int, sent: SentJob | None) -> None:
        self._launcher, self._number, self._sent = launcher, number, sent
        self._is_taken = self._is_stopped = False

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the worker runs or waits.

        Raises:
            WorkerError: if the node or the cluster is lost.
            ConfigError: if no node has the requested resources.
        """
        if self._is_stopped:
            return -signal.SIGKILL
        try:
            state = self._launcher.state_of(self._number)
        finally:
            self._grow()  # what a lost worker has written was written
        code = None if state is None else state.get("code")
        if state and state.get("elsewhere") and self._sent and not self._is_taken:
            self._sent.take_result()
            self._is_taken = True
        return code

    def _grow(self) -> None:
        for each in self._launcher.grown(self._number):
            if self._sent:
                self._sent.grow(each)

    def stop(self) -> None:
        """End the worker on all its nodes, and wait for it."""
        if not self._is_stopped:
            self._launcher.stop(self._number)
            self._is_stopped = True
            if self._sent:
                self._sent.forget()


def _error(said: dict[str, str]) -> Exception:
    return _ERRORS.get(said["class"], WorkerError)(said["message"])


plugin = LauncherPlugin(
    summary="A Ray cluster: stages compute where there is room, training on one or several nodes",
    paper="arXiv 1712.05889",
    config_class=RayConfig,
    build=RayLauncher,
)
