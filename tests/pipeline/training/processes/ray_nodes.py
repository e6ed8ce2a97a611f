"""A Ray cluster of two nodes on this machine: two network namespaces that a third one joins.

Needs root, `ip` of iproute2, and Ray. Each node sees only its own interfaces. In the third
namespace there is an object store. It is all that both nodes reach of the folder of the cluster:
node `b` has an empty file system in its place. All other files they share.

There can be one such cluster at a time: Ray would find the processes of another.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.object_server import environment_for
from tests.patience import patient, until

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of a cluster that lives for a test
PORT, _STORE_PORT = 6399, 5055
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_OURS = ("patchline.pipeline", "patchline.plugins.launchers")


@functools.cache
def why_not() -> str:
    """Return why such a cluster cannot be started here; empty if it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed (the extra ray)"
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root and iproute2"
    name = f"plr-try{os.getpid()}"  # test processes try at the same time
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return "" if made.returncode == 0 else "network namespaces are not permitted here"


class Cluster:
    """Two nodes, `a` with the head and `b`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spaces = {"a": f"plra{os.getpid()}", "b": f"plrb{os.getpid()}"}
        self.hosts = {"a": "10.78.0.1", "b": "10.78.0.2"}
        self.store_space, self.store_host = f"plrs{os.getpid()}", "10.78.0.9"
        self._store: subprocess.Popen[bytes] | None = None
        self.private = Path(tempfile.mkdtemp(prefix="plr"))  # Ray's names of sockets are long

    @property
    def address(self) -> str:
        """Of the head."""
        return f"{self.hosts['a']}:{PORT}"

    def command(self, node: str, *words: str) -> list[str]:
        """Return a command that runs on a node."""
        return ["ip", "netns", "exec", self.spaces[node], *words]

    @property
    def work(self) -> Path:
        """The folder that `a` works in; `b` does not see it."""
        return self.folder / "work"

    @property
    def workspace(self) -> str:
        """Address of the workspace on the store."""
        return "s3://nodes/team"

    @property
    def environment(self) -> dict[str, str]:
        """Of everything that runs in the cluster."""
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        own["RAY_worker_niceness"] = "0"  # by default 15: beside other tests they would starve
        root = str(Path(__file__).resolve().parents[4])
        store = environment_for(f"http://{self.store_host}:{_STORE_PORT}")
        return {**os.environ, **own, **store, "PYTHONPATH": root}

    def join(self) -> None:
        """Create the namespaces, and cables to a bridge in a third one, with the store."""
        inside = ["ip", "netns", "exec", self.store_space]
        for each in (*self.spaces.values(), self.store_space):
            subprocess.run(["ip", "netns", "add", each], check=True)
        commands = [
            [*inside, "ip", "link", "add", "bridge", "type", "bridge"],
            [*inside, "ip", "addr", "add", f"{self.store_host}/24", "dev", "bridge"],
            [*inside, "ip", "link", "set", "bridge", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
        ]
        for node, space in self.spaces.items():
            name = f"to{node}"
            link = ["link", "add", name, "netns", self.store_space, "type", "veth", "peer", "name"]
            commands += [
                ["ip", *link, "cable", "netns", space],
                [*inside, "ip", "link", "set", name, "master", "bridge"],
                [*inside, "ip", "link", "set", name, "up"],
                self.command(node, "ip", "addr", "add", f"{self.hosts[node]}/24", "dev", "cable"),
                self.command(node, "ip", "link", "set", "lo", "up"),
                self.command(node, "ip", "link", "set", "cable", "up"),
            ]
        for words in commands:
            subprocess.run(words, check=True)
        program = "from moto.server import main; main()"
        server = [*inside, sys.executable, "-P", "-c", program, "-H", self.store_host]
        with (self.folder / "objects.log").open("ab") as log:
            self._store = subprocess.Popen(
                [*server, "-p", str(_STORE_PORT)], stdout=log, stderr=log
            )
        url = f"http://{self.store_host}:{_STORE_PORT}/nodes"
        make = f"import urllib.request as r; r.urlopen(r.Request({url!r}, method='PUT'))"
        made = [*inside, sys.executable, "-c", make]
        until(
            lambda: not subprocess.run(made, capture_output=True, check=False).returncode,
            "the object store does not start",
        )

    def start(self, node: str, folder: Path | None = None, **variables: str) -> None:
        """Start Ray on a node, with its files below a folder of mode 0700, or in a given one."""
        head = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
        cores = "1" if node == "a" else "2"  # who reserves two is where files have to travel
        rest = ["--node-ip-address", self.hosts[node], "--num-cpus", cores, "--disable-usage-stats"]
        rest += ["--object-store-memory", "100000000"]
        rest += ["--temp-dir", str(folder or self.private / "ray")]
        place = head if node == "a" else ["--address", self.address]
        command = [*_RAY, "start", *place, *rest]
        if node == "b":
            own = f"mount -t tmpfs none {self.folder} && export HOME={self.folder}/home"
            script = f'{own} && mkdir -p "$HOME" && cd "$HOME" && exec "$@"'
            command = ["sh", "-c", script, "-", *command]
        subprocess.run(
            self.command(node, *command),
            env={**self.environment, "RAY_gcs_rpc_server_reconnect_timeout_s": "20", **variables},
            check=True,
            capture_output=True,
            timeout=patient(120),
        )

    def pids(self, node: str, word: str = "") -> list[int]:
        """Return the processes of a node whose command holds a word."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.spaces[node]], capture_output=True, text=True, check=False
        )
        return [pid for pid in map(int, listed.stdout.split()) if word in _command(pid)]

    def files_of(self, node: str) -> Path:
        """Return the folder of the cluster as a node sees it."""
        return Path(f"/proc/{self.pids(node)[0]}/root{self.folder}")

    def ours(self) -> list[str]:
        """Return the commands of our own processes on both nodes."""
        found = [_command(pid) for node in self.spaces for pid in self.pids(node)]
        return [each for each in found if any(word in each for word in _OURS)]

    def kill(self, node: str, word: str = "") -> None:
        """Kill the processes of a node whose command holds a word, at once."""
        for pid in self.pids(node, word):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def is_whole(self) -> bool:
        """Whether the head and both nodes are there."""
        return bool(self.pids("a", "gcs_server")) and all(
            self.pids(node, "raylet/raylet") for node in self.spaces
        )

    def restart(self) -> None:
        """End everything on both nodes, and start Ray again; on a busy machine it may fail once."""
        for attempts_left in (2, 1, 0):
            for node in self.spaces:
                self.kill(node)
            with contextlib.suppress(AssertionError):
                until(lambda: not any(map(self.pids, self.spaces)), "-", seconds=20)
            try:
                self.start("a")
                self.start("b")
            except subprocess.SubprocessError:
                if not attempts_left:
                    raise
            else:
                return

    def remove(self) -> None:
        """Leave nothing behind."""
        for node, space in self.spaces.items():
            self.kill(node)
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
        if self._store is not None:
            self._store.kill()
            self._store.wait()
        delete = ["ip", "netns", "delete", self.store_space]
        subprocess.run(delete, capture_output=True, check=False)
        shutil.rmtree(self.private, ignore_errors=True)


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """Start both nodes, which write into a folder, and end them."""
    cluster = Cluster(folder)
    cluster.work.mkdir(parents=True, exist_ok=True)
    try:
        cluster.join()
        cluster.restart()
        yield cluster
    finally:
        cluster.remove()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
