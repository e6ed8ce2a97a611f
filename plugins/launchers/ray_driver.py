"""The driver process: connects to a Ray cluster, reserves resources and starts workers.

`python -P -m patchline.plugins.launchers.ray_driver`, with the settings as the first line of its
input, then one line for each thing to do. It ends when its input closes; then no worker is left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray._raylet import (  # type: ignore[attr-defined,unused-ignore]  # its stubs lack them
    AuthenticationTokenLoader,
    GcsClient,
)
from ray.exceptions import AuthenticationError, GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from patchline.pipeline.errors import first_line
from patchline.plugins.launchers.ray_host import (
    LOST_SECONDS,
    Host,
    HostTask,
    environment_of_nodes,
    facts,
    find_exposed_folder,
)

_POLL_SECONDS, _START_POLL_SECONDS = 0.1, 0.02
"""Between two looks at workers that run, and at some that are being started."""
_ALIVE_SECONDS = 2.0
_STOP_SECONDS = 20.0
_CONNECT_SECONDS = 30.0
_REACH_SECONDS = 5.0
_LET_IN, _KEPT_OUT = 10, 11
"""Exit codes of a client without the token."""


class Refused(Exception):  # noqa: N818 - it becomes the error that it names
    """Something that the user has to change; the parent raises it."""

    def __init__(self, message: str, kind: str = "ConfigError") -> None:
        super().__init__(message)
        self.said = {"class": kind, "message": message}


class ResourceRequest(NamedTuple):
    """What a task reserves: on each of so many nodes, CPU cores, GPUs and bytes of memory."""

    nodes: int
    cpus: float
    gpus: float
    memory: float

    def fits(self, other: ResourceRequest) -> bool:
        """Return whether a task with these needs fits into what was reserved for another one."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The same as Ray's bundles."""
        each = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return [{key: value for key, value in each.items() if value}] * self.nodes

    def words(self) -> str:
        """Return the needs as words."""
        gpus = f" and {self.gpus:g} GPUs" if self.gpus else ""
        memory = f" and {self.memory / 2**30:.1f} GiB" if self.memory else ""
        nodes = "one node" if self.nodes == 1 else f"each of {self.nodes} nodes"
        return f"{self.cpus:g} CPU cores{gpus}{memory} on {nodes}"


@dataclass
class Reservation:
    """Resources that are reserved, with a host on each node, which works for one task at a time."""

    needs: ResourceRequest
    group: PlacementGroup
    hosts: list[Any] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    sees_workspace: list[bool] = field(default_factory=list)
    """Whether each host sees the folder of the run."""
    tasks: dict[int, int] = field(default_factory=dict)
    """The number of the task that each host works for, by the index of the host."""
    waiting: Any = None
    """Answers the hosts' first calls; None once they have."""
    last: float = field(default_factory=time.monotonic)
    """When its hosts were last told that this process is alive."""

    @property
    def is_ready(self) -> bool:
        """Whether all hosts have started."""
        return self.waiting is None

    def free_for(self, needs: ResourceRequest) -> list[int]:
        """Return the indices of free hosts for a task; empty if it does not fit."""
        free = [index for index in range(len(self.hosts)) if index not in self.tasks]
        if len(self.sees_workspace) == len(self.hosts):  # nothing travels if the first one sees it
            free.sort(key=lambda index: not self.sees_workspace[index])
        fits = needs.fits(self.needs) and len(free) >= needs.nodes
        return free[: needs.nodes] if fits else []


@dataclass
class Preparation:
    """A worker that is prepared ahead of its job."""

    number: int
    module: str
    needs: ResourceRequest
    since: float = field(default_factory=time.monotonic)
    answer: Any = None
    """What its host will have been told by it, once one prepares it."""


@dataclass
class Task(Preparation):
    """A worker that was asked for."""

    folder: str = ""
    member: str | None = None
    job: str = ""
    """Its name in the shared workspace; empty if all nodes see its folder."""
    seat: Reservation | None = None
    indices: list[int] = field(default_factory=list)
    """Indices of the hosts of its seat that work for it."""
    polls: list[Any] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    """The calls that start its workers, first that of the first node, then those of the others."""
    group: dict[str, Any] = field(default_factory=dict)
    """What the nodes of a group know about each other."""
    is_running: bool = False
    heard: float = field(default_factory=time.monotonic)

    @property
    def hosts(self) -> list[Any]:
        """The hosts that work for it."""
        return [self.seat.hosts[index] for index in self.indices] if self.seat else []

    @property
    def addresses(self) -> list[str]:
        """Where they are."""
        known = self.seat.addresses if self.seat else []
        return [known[index] for index in self.indices if index < len(known)]


def say(**line: Any) -> None:
    """Write a line to the parent."""
    print(json.dumps(line), flush=True)  # noqa: T201 - to the parent


class UnauthenticatedProbe:
    """A client that does not know the token of a cluster, and tries to read there.

    It is a child process, because Ray keeps the token that a process begins with; and a forked one,
    because it would import Ray as long as all else takes. So this is made before any thread.

    Args:
        address: the address of the cluster.
    """

    def __init__(self, address: str) -> None:
        self._child = os.fork()
        if self._child == 0:
            try:
                os._exit(_LET_IN if self._reads(address) else _KEPT_OUT)
            finally:
                os._exit(1)  # of any other error, nobody knows what it means

    @staticmethod
    def _reads(address: str) -> bool:
        with Path(os.devnull).open("r+b") as nothing:
            for standard in range(3):
                os.dup2(nothing.fileno(), standard)
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        AuthenticationTokenLoader.instance().reset_cache()
        try:
            GcsClient(address=address).internal_kv_keys(b"", None, timeout=_REACH_SECONDS)
        except AuthenticationError:
            return False
        return True

    def was_let_in(self) -> bool | None:
        """Wait for it, and return whether it could read; None if that is not known."""
        until = time.monotonic() + _CONNECT_SECONDS
        while (ended := os.waitpid(self._child, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.kill(self._child, signal.SIGKILL)
            time.sleep(_START_POLL_SECONDS)
        return {_LET_IN: True, _KEPT_OUT: False}.get(os.waitstatus_to_exitcode(ended[1]))


class Driver:
    """Does what the lines say, in one loop.

    Raises:
        Refused: if there is no cluster.
    """

    def __init__(self, settings: dict[str, Any], lines: queue.SimpleQueue[str | None]) -> None:
        self._settings, self._lines = settings, lines
        self._address = self._reached()
        self._stranger = UnauthenticatedProbe(self._address)
        self._seats: list[Reservation] = []
        self._tasks: dict[int, Task] = {}
        self._prepared: dict[int, Preparation] = {}
        self._nodes: list[dict[str, Any]] = []
        self._last_sign = 0.0

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Connect, then follow the lines until there are no more."""
        self._connect()
        try:
            while self._follow_lines():
                self._serve()
        finally:
            self._end()

    def _follow_lines(self) -> bool:
        """Do what new lines say; return False at the end of the input."""
        are_starting = any(each.seat and not each.is_running for each in self._tasks.values())
        timeout = _START_POLL_SECONDS if are_starting else _POLL_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=timeout)
            except queue.Empty:
                return True
            if line is None:
                return False
            said = json.loads(line)
            try:
                self._follow(said)
            except Refused as refused:
                say(number=said["number"], error=refused.said)
            timeout = 0.001

    def _follow(self, said: dict[str, Any]) -> None:
        number = said["number"]
        if said["do"] == "stop":
            self._stop(number)
            return
        what = number, said["module"], self._needs(said["needs"])
        if said["do"] == "prepare":
            self._prepared[number] = Preparation(*what)
        else:
            named = {key: said[key] for key in ("folder", "member", "job")}
            self._tasks[number] = Task(*what, **named)

    def _serve(self) -> None:
        """Let everything that waits take its next step."""
        for seat in list(self._seats):
            self._look_at_seat(seat)
        for preparation in list(self._prepared.values()):
            try:
                self._prepare(preparation)
            except Refused as refused:
                del self._prepared[preparation.number]
                say(number=preparation.number, error=refused.said)
        for task in list(self._tasks.values()):
            try:
                self._advance(task)
            except Refused as refused:
                self._quietly_stop(task)
                self._forget(task)
                say(number=task.number, error=refused.said)
            except RayError as error:
                self._lose(task, _reason(error))
        if time.monotonic() - self._last_sign > _ALIVE_SECONDS:
            self._last_sign = time.monotonic()
            say(alive=True)

    # -- the cluster ---------------------------------------------------------------------------

    def _connect(self) -> None:
        address = self._address
        failure: Exception | None = None
        try:
            if AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
                # Ray hides that the token is refused; whoever reads first is told.
                GcsClient(address=address).internal_kv_keys(b"", None, timeout=_CONNECT_SECONDS)
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _node_ip_address=_own_address(address.rpartition(":")[0]),
            )
        except Exception as error:  # noqa: BLE001 - Ray raises many types
            failure = error
        is_open = self._stranger.was_let_in()
        if is_open:
            raise Refused(
                f"The Ray cluster at {address} lets anyone in who reaches it: it was started "
                "without token authentication. Start all of its nodes with "
                "RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN."
            ) from failure
        if failure is not None:
            raise Refused(self._unreachable(address, failure)) from failure
        if is_open is None:
            raise Refused(
                f"The Ray cluster at {address} did not say whether it lets in clients without its "
                "token. Start the command again.",
                "WorkerError",
            )
        if exposed := find_exposed_folder():
            raise Refused(_describe_exposure("this machine", exposed))
        self._nodes = _nodes()
        self._check_folder(address)
        say(ready={"nodes": self._nodes, "address": address})

    def _reached(self) -> str:
        """Return the address of the cluster, which answers."""
        address = self._named_address()
        host, _, port = address.rpartition(":")
        try:  # Ray itself would try for a minute
            socket.create_connection((host, int(port)), _REACH_SECONDS).close()
        except (OSError, ValueError) as error:
            raise Refused(self._unreachable(address, error)) from error
        return address

    def _named_address(self) -> str:
        address = str(self._settings["address"])
        if address != "auto":
            return address
        found = os.environ.get("RAY_ADDRESS", "")
        if not found:
            with contextlib.suppress(Exception):
                from ray._private.services import canonicalize_bootstrap_address_or_die

                found = str(canonicalize_bootstrap_address_or_die("auto"))
        if not found:
            raise Refused(
                "This machine belongs to no Ray cluster that runs. Start one with "
                "`install -d -m 700 ~/.ray` and `RAY_AUTH_MODE=token RAY_AUTH_TOKEN=… ray start "
                "--head --temp-dir ~/.ray/temp`, or set launcher.address to HOST:PORT of a "
                "cluster's head."
            )
        return found

    def _unreachable(self, address: str, error: Exception) -> str:
        text = " ".join(str(error).split())
        if "Authentication" in type(error).__name__ or "token" in text.lower():
            what = "refuses the token"
            if "no authentication token" in text:
                what = "needs a token, and there is none"
            elif "RAY_AUTH_TOKEN_PATH is set" in text:
                file = os.environ.get("RAY_AUTH_TOKEN_PATH")
                what = f"needs a token, and RAY_AUTH_TOKEN_PATH ({file}) is no file with one"
            return (
                f"The Ray cluster at {address} {what}. Set RAY_AUTH_TOKEN to the one that its "
                "nodes were started with, or RAY_AUTH_TOKEN_PATH to a file with it."
            )
        if "version" in text.lower() and "mismatch" in text.lower():
            return f"The Ray cluster at {address} has other versions: {text[:300]}"
        return (
            f"There is no Ray cluster at {address} that this machine belongs to "
            f"({type(error).__name__}). Start its head with `ray start --head`, and this machine "
            f"with `ray start --address {address}`, or correct launcher.address."
        )

    def _check_folder(self, address: str) -> None:
        """Refuse a workspace that only this machine has, on a cluster of several nodes."""
        alone = not self._settings["shared_folder"] and not self._settings["uri"]
        if len(self._nodes) > 1 and alone:
            raise Refused(
                f"The Ray cluster at {address} has {len(self._nodes)} nodes, but the workspace "
                f"{self._settings['workspace']} is a folder of one machine. Use one on an object "
                "store (--workspace s3://bucket/team), or, if all nodes mount this folder at the "
                "same path, set launcher.shared_folder to true."
            )

    # -- resources -----------------------------------------------------------------------------

    def _needs(self, request: dict[str, Any]) -> ResourceRequest:
        """Return what to reserve for a worker.

        Raises:
            Refused: if no node is large enough.
        """
        settings, processes = self._settings, int(request["processes"])
        nodes = min(int(settings["nodes"]), processes)
        if nodes > 1 and processes % nodes:
            raise Refused(
                f"training.processes is {processes}, which launcher.nodes {nodes} does not divide. "
                "Set training.processes to a multiple of it."
            )
        gpus = self._gpus(request["gpus"], settings["gpus"], processes, nodes)
        fitting = [each for each in self._nodes if each["gpus"] >= gpus]
        largest = sorted((each["cpus"] for each in fitting), reverse=True)[:nodes]
        cpus = settings["cpus"] or request["cpus"] or (largest[-1] if largest else 1.0)
        memory = min(settings["memory_gib"], 1024.0) * 2**30
        needs = ResourceRequest(nodes, float(cpus), float(gpus), float(memory))
        large = [e for e in fitting if e["cpus"] >= cpus and e["memory"] >= memory]
        if len(large) < nodes:
            have = "; ".join(
                f"{e['address']} with {e['cpus']:g} CPU cores, {e['gpus']:g} GPUs and "
                f"{e['memory'] / 2**30:.1f} GiB"
                for e in self._nodes
            )
            raise Refused(
                f"A worker needs {needs.words()}, which the Ray cluster does not have: it has "
                f"{have}. Set launcher.cpus, launcher.gpus, launcher.memory_gib or launcher.nodes "
                "to less, or add nodes."
            )
        return needs

    def _gpus(self, wish: int | None, setting: int | None, processes: int, nodes: int) -> float:
        """Return the GPUs on each node."""
        if wish == 0:
            return 0.0
        if setting is not None:
            return math.ceil(setting / nodes)
        if wish is not None:
            return math.ceil(wish / nodes)
        each = processes // nodes
        return float(each if sum(e["gpus"] >= each for e in self._nodes) >= nodes else 0)

    def _seat_for(
        self, needs: ResourceRequest, module: str, others: str, *, may_release: bool
    ) -> Reservation | None:
        """Return a free seat that is large enough, or ask for one.

        Args:
            needs: the resources that have to be free there.
            module: the module that the first node of a new seat will work for.
            others: the module that its other nodes will work for.
            may_release: whether seats that are free may be given back for it.
        """
        for seat in self._seats:
            if seat.free_for(needs):
                return seat
        if may_release:
            for seat in [each for each in self._seats if not each.tasks]:
                if not self._room_for(needs):
                    self._release(seat)
        if not self._room_for(needs) and (self._seats or not may_release):
            return None  # one of our own workers makes room when it ends
        return self._reserve(needs, module, others)

    def _room_for(self, needs: ResourceRequest) -> bool:
        free = ray.available_resources()
        return bool(free.get("CPU", 0.0) >= needs.cpus * needs.nodes)

    def _reserve(self, needs: ResourceRequest, module: str, others: str) -> Reservation:
        strategy = "STRICT_SPREAD" if needs.nodes > 1 else "PACK"
        group = placement_group(needs.bundles, strategy=strategy)
        seat = Reservation(needs, group)
        environment = environment_of_nodes(os.environ, self._settings["uri"])
        remote = ray.remote(Host)
        for index in range(needs.nodes):
            host = remote.options(
                num_cpus=needs.cpus,
                num_gpus=needs.gpus,
                memory=needs.memory or None,
                max_concurrency=8,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index
                ),
            ).remote(needs.cpus, environment, others if index else module, needs.nodes)
            seat.hosts.append(host)
        mark = self._mark()
        seat.waiting = [host.introduce.remote(str(mark), mark.read_text()) for host in seat.hosts]
        self._seats.append(seat)
        return seat

    def _mark(self) -> Path:
        """Return a file of the workspace that each node has to read."""
        file = Path(self._settings["workspace"]) / "ray" / f"mark-{os.getpid()}"
        if not file.exists():
            file.write_text(secrets.token_hex(16), encoding="utf-8")
        return file

    def _look_at_seat(self, seat: Reservation) -> None:
        """Take note of hosts that have started, and tell them that this process is alive."""
        if seat.waiting is not None:
            if ray.wait(seat.waiting, num_returns=len(seat.waiting), timeout=0)[1]:
                self._pulse(seat)  # the first to start may wait long for the others
                return
            try:
                told = ray.get(seat.waiting)
            except RayError as error:
                if not seat.tasks:  # else the task that waits for the seat says it
                    self._release(seat)
                    self._lose_preparations(_reason(error))
                return
            self._nodes = _nodes()
            places = {each["id"]: each["address"] for each in self._nodes}
            for each in told:
                each["address"] = places.get(each["node"], each["node"])
            seat.addresses = [each["address"] for each in told]
            seat.sees_workspace = [bool(each["sees_workspace"]) for each in told]
            seat.waiting = None
            self._check_hosts(told)
        else:
            self._pulse(seat)

    def _pulse(self, seat: Reservation) -> None:
        """Tell all hosts of a seat, also those without a task; they end if nobody does."""
        if time.monotonic() - seat.last > _ALIVE_SECONDS:
            seat.last = time.monotonic()
            for host in seat.hosts:
                host.pulse.remote()

    def _check_hosts(self, told: list[dict[str, Any]]) -> None:
        own = facts()
        for each in told:
            if each["exposed"]:
                raise Refused(_describe_exposure(f"the node {each['address']}", each["exposed"]))
            if each["refused"]:
                raise Refused(
                    f"The node {each['address']} cannot use the workspace "
                    f"{self._settings['uri']}: {each['refused']} Set this up on that node, such as "
                    "with AWS_ACCESS_KEY_ID before its `ray start`, and start its Ray again."
                )
            if not each["has_workspace"]:
                raise Refused(
                    f"The node {each['address']} cannot read the workspace "
                    f"{self._settings['workspace']}. Mount it there at the same path."
                )
            for key, value in own.items():
                if each[key] != value:
                    raise Refused(
                        f"The node {each['address']} has {key} {each[key]}, and this machine has "
                        f"{value}. Install the same on all nodes."
                    )

    def _release(self, seat: Reservation) -> None:
        for host in seat.hosts:
            with contextlib.suppress(RayError, ValueError):
                ray.kill(host)
        with contextlib.suppress(RayError, ValueError):
            remove_placement_group(seat.group)
        if seat in self._seats:
            self._seats.remove(seat)

    # -- workers -------------------------------------------------------------------------------

    def _prepare(self, preparation: Preparation) -> None:
        """Take the next step of a worker that is prepared ahead of its job."""
        needs, module = preparation.needs, preparation.module
        if preparation.answer is None:
            ready = [s for s in self._seats if s.is_ready and needs.fits(s.needs)]
            if ready:
                preparation.answer = ready[0].hosts[0].prepare.remote(module)
                return
            self._check_wait(preparation)
            if not self._seats:
                self._seat_for(needs, module, module, may_release=False)
        elif ray.wait([preparation.answer], timeout=0)[0]:
            del self._prepared[preparation.number]
            introduction = ""
            with contextlib.suppress(RayError):
                introduction = ray.get(preparation.answer)
            say(number=preparation.number, introduction=introduction)

    def _lose_preparations(self, reason: str) -> None:
        """Give up what would have been prepared on hosts that did not start."""
        for number, each in list(self._prepared.items()):
            if each.answer is None:
                del self._prepared[number]
                say(number=number, lost=_describe_loss(each.module, "", reason))

    def _advance(self, task: Task) -> None:
        """Take the next step of a task: a seat, its start, a look at its workers."""
        if task.seat is None:
            others = task.member or task.module
            task.seat = self._seat_for(task.needs, task.module, others, may_release=True)
            if task.seat is not None:
                task.indices = task.seat.free_for(task.needs)
                task.seat.tasks |= dict.fromkeys(task.indices, task.number)
        seat = task.seat
        if seat is None or not seat.is_ready:
            self._check_wait(task)
            if seat is not None and seat.waiting is not None:
                done, _ = ray.wait(seat.waiting, timeout=0)
                if done:
                    ray.get(done)  # raises why a host has not started
            return
        if not task.starts:
            task.heard = time.monotonic()
            task.indices.sort(key=lambda index: not seat.sees_workspace[index])
            shared = all(seat.sees_workspace[index] for index in task.indices)
            task.group = {"nodes": task.addresses, "shares_folder": shared}
            task.starts = [self._start(task, 0, task.module)]
        elif not task.is_running:
            self._go_on_starting(task)
        else:
            self._poll(task)

    def _check_wait(self, task: Task | Preparation) -> None:
        if any(each.is_running for each in self._tasks.values()):
            task.since = time.monotonic()  # our own workers hold what it waits for
        wait = float(self._settings["wait_seconds"])
        if time.monotonic() - task.since > wait:
            raise Refused(
                f"No node of the Ray cluster had {task.needs.words()} within {wait:g} seconds. "
                "Wait for what else runs there, or add nodes.",
                "WorkerError",
            )

    def _go_on_starting(self, task: Task) -> None:
        """Start the workers of the other nodes once that of the first has been started."""
        if ray.wait(task.starts, num_returns=len(task.starts), timeout=0)[1]:
            return
        for answer, where in zip(ray.get(task.starts), task.addresses, strict=False):
            if "error" in answer:
                said = answer["error"]
                raise Refused(f"The node {where}: {said['message']}", said["class"])
            task.group = answer["group"]
        task.heard = time.monotonic()
        if task.member and task.needs.nodes > len(task.starts):
            others = range(1, task.needs.nodes)
            task.starts += [self._start(task, index, task.member) for index in others]
        else:
            task.is_running = True

    def _start(self, task: Task, index: int, module: str) -> Any:
        started = HostTask(task.number, module, task.folder, task.job, task.group, index)
        return task.hosts[index].start.remote(started)

    def _poll(self, task: Task) -> None:
        if not task.polls:
            task.polls = [host.poll.remote(task.number) for host in task.hosts]
        done, rest = ray.wait(task.polls, num_returns=len(task.polls), timeout=0)
        if rest:
            for ref in done:
                ray.get(ref)  # raises if its node has died
            if time.monotonic() - task.heard > LOST_SECONDS:
                self._lose(task, f"no answer for {LOST_SECONDS:g} seconds")
            return
        first, *others = ray.get(task.polls)
        code, of_others = first["code"], [each["code"] for each in others]
        if first.get("grown"):
            say(number=task.number, grown=first["grown"])
        task.polls, task.heard = [], time.monotonic()
        if code is not None:
            self._forget(task)
            if of_others or task.job:
                self._quietly_stop(task)
            if first.get("error"):
                where = task.addresses[0] if task.addresses else "a node"
                lost = f"The result of {task.module} could not be sent from {where}: "
                say(number=task.number, lost=f"{lost}{first['error']} Then resume the run.")
            else:
                say(number=task.number, code=code, elsewhere="grown" in first)
        elif any(each not in (None, 0) for each in of_others):
            index = next(i for i, each in enumerate(of_others, 1) if each not in (None, 0))
            self._lose(task, f"its process on the node {task.addresses[index]} has ended")

    def _lose(self, task: Task, reason: str) -> None:
        """Give up a task, and all that was reserved for it."""
        seat, where = task.seat, ", ".join(task.addresses)
        self._forget(task)
        self._quietly_stop(task)
        if seat is not None:
            self._release(seat)
        say(number=task.number, lost=_describe_loss(task.module, where, reason))

    def _forget(self, task: Task) -> None:
        self._tasks.pop(task.number, None)
        if task.seat is not None:
            for index in task.indices:
                task.seat.tasks.pop(index, None)

    def _stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            self._forget(task)
            self._quietly_stop(task)
        say(number=number, stopped=True)

    def _quietly_stop(self, task: Task) -> None:
        if task.seat is None or not task.starts:
            return
        stops = [host.stop.remote(task.number) for host in task.hosts]
        done, rest = ray.wait(stops, num_returns=len(stops), timeout=_STOP_SECONDS)
        failed = bool(rest)
        for ref in done:
            try:
                ray.get(ref)
            except RayError:
                failed = True
        if failed:  # what does not answer ends by itself, or with its host
            self._release(task.seat)

    def _end(self) -> None:
        for task in list(self._tasks.values()):
            with contextlib.suppress(RayError, GetTimeoutError):
                self._quietly_stop(task)
        for seat in list(self._seats):
            self._release(seat)
        with contextlib.suppress(OSError):
            self._mark().unlink()


def _describe_loss(module: str, where: str, reason: str) -> str:
    return (
        f"The process {module} on {where or 'the Ray cluster'} was lost: {reason}. "
        "Start nodes that have died again with `ray start`, then resume the run."
    )


def _describe_exposure(where: str, folder: str) -> str:
    return (
        f"Ray's folder on {where}, {folder}, is open to all local users, sockets included. Run "
        "`ray stop` there, then start Ray again below a folder of mode 0700: "
        "`install -d -m 700 ~/.ray`, and `ray start --temp-dir ~/.ray/temp` with its other options."
    )


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive, with their resources."""
    return [
        {
            "id": each["NodeID"],
            "address": each["NodeManagerAddress"],
            "cpus": each["Resources"].get("CPU", 0.0),
            "gpus": each["Resources"].get("GPU", 0.0),
            "memory": each["Resources"].get("memory", 0.0),
        }
        for each in ray.nodes()
        if each["Alive"]
    ]


def _own_address(host: str) -> str:
    """Return the address of this machine by which it reaches a host; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.connect((host, 9))
        return str(opened.getsockname()[0])


def _reason(error: RayError) -> str:
    """Return why a host does not work for us any more."""
    if isinstance(error, RayActorError):  # whose own words are of sockets and ids
        return f"its node has died or does not answer ({type(error).__name__})"
    return first_line(error)


def _lines_into(lines: queue.SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)
    time.sleep(_STOP_SECONDS + _CONNECT_SECONDS)
    os._exit(1)  # the cluster does not answer: the hosts end by themselves


def main() -> None:
    """Drive the cluster until the input ends."""
    settings = json.loads(sys.stdin.readline())
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    try:
        driver = Driver(settings, lines)
        threading.Thread(target=_lines_into, args=(lines,), daemon=True).start()
        driver.run()
    except Refused as refused:
        say(failure=refused.said)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
