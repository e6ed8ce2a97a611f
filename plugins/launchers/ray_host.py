"""What runs on a node of a Ray cluster: an actor that starts workers there, and ends them.

Workers are processes of the node, started as on any machine. They end with the actor, because their
standard input closes; and the actor ends them itself if its driver does not ask for half a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import ray

from patchline.plugin_api import LocalLauncher, Resources, RunningWorker, WorkerTask

_WATCH_SECONDS = 1.0
GROUP_FILE = "group.json"


def facts() -> dict[str, str]:
    """Return what has to be the same on all nodes."""
    return {"Patchline": metadata.version("patchline"), "Python": platform.python_version()}


def _free_port(address: str) -> int:
    """Return a port that is free at an address of this node."""
    with socket.socket() as opened:
        opened.bind((address, 0))
        return int(opened.getsockname()[1])


class Host:
    """Starts workers on the node that Ray has placed it on.

    Args:
        cpus: cores that are reserved for it.
        environment: variables of Patchline that workers inherit.
        patience_seconds: without a call for so long, it ends.
    """

    def __init__(self, cpus: float, environment: dict[str, str], patience_seconds: float) -> None:
        os.environ.update(environment)
        # Ray limits it to the reserved cores; a whole node needs no limit.
        os.environ.pop("OMP_NUM_THREADS", None)
        if cpus < (os.cpu_count() or 1):
            os.environ["OMP_NUM_THREADS"] = str(max(1, int(cpus)))
        self._launcher = LocalLauncher(keeps_prepared=True)
        self._workers: dict[int, RunningWorker] = {}
        self._patience, self._last = patience_seconds, time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def introduce(self, file: str, content: str) -> dict[str, Any]:
        """Return where this is, and whether it reads a file of the workspace."""
        self.pulse()
        seen = ""
        with contextlib.suppress(OSError):
            seen = Path(file).read_text(encoding="utf-8")
        node = ray.get_runtime_context().get_node_id()
        return {"node": node, "sees_workspace": seen == content, **facts()}

    def pulse(self) -> None:
        """Take note that the driver is alive."""
        self._last = time.monotonic()

    def prepare(self, module: str) -> str:
        """Let a worker import what a module needs, and return what it prints about this node."""
        self._launcher.prepare(module, Resources())
        return self._launcher.introduction(module, Resources())

    def start(self, number: int, module: str, folder: str, nodes: list[str]) -> None:
        """Start a worker; the first of several if it trains on several nodes."""
        self.pulse()
        if len(nodes) > 1:
            group = {"nodes": nodes, "port": _free_port(nodes[0])}
            Path(folder, GROUP_FILE).write_text(json.dumps(group), encoding="utf-8")
        self._workers[number] = self._launcher.start(WorkerTask(module, Path(folder)))

    def join(self, number: int, module: str, folder: str, index: int) -> None:
        """Start the worker of another node of a group, in a folder of its own."""
        self.pulse()
        own = Path(folder) / f"node-{index}"
        own.mkdir(exist_ok=True)
        for left in ("result.json", "events.jsonl"):
            (own / left).unlink(missing_ok=True)
        job = {"folder": folder, "node": index}
        (own / "job.json").write_text(json.dumps(job), encoding="utf-8")
        self._workers[number] = self._launcher.start(WorkerTask(module, own))

    def poll(self, number: int) -> int | None:
        """Return the exit code of a worker; None while it runs."""
        self.pulse()
        worker = self._workers.get(number)
        return worker.poll() if worker else None

    def stop(self, number: int) -> None:
        """End a worker with all that it has started."""
        self.pulse()
        worker = self._workers.pop(number, None)
        if worker:
            worker.stop()

    def _watch(self) -> None:
        """End with the driver, also where the network or the head of the cluster is lost."""
        while time.monotonic() - self._last < self._patience:
            time.sleep(_WATCH_SECONDS)
        for worker in list(self._workers.values()):
            worker.stop()
        self._launcher.close()
        os._exit(1)
