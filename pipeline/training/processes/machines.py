"""The machines over which the processes of a training run are spread, and how they find each other.

A launcher writes `group.json` into the folder of the training if there are several. The first
machine, whose worker has the job, holds a store of keys and values that all others talk to; it
listens on the address that the launcher has named, and on no other interface.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.launcher import GROUP_FILE

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOOPBACK = "127.0.0.1"
NODE_VARIABLE = "PATCHLINE_NODE"
"""Environment variable of a rank: which of the machines it runs on, counted from 0."""
_BACKENDS = ("GLOO", "NCCL")
_PATIENCE = timedelta(minutes=2)
"""Time for the store to answer."""


class Machines(FrozenModel):
    """The machines of a group; the first one has the job."""

    nodes: tuple[str, ...] = (LOOPBACK,)
    """Addresses of the machines."""
    port: int = 0
    """Port of the store on the first machine."""
    shares_folder: bool = True
    """Whether all of them see the folder of the training; otherwise each has one of its own."""

    @classmethod
    def of(cls, folder: Path) -> Machines:
        """Return the machines that a launcher has named; this one alone if it has named none."""
        file = folder / GROUP_FILE
        if not file.exists():
            return cls()
        return cls.from_file(file)

    @property
    def are_several(self) -> bool:
        """Whether there is more than this machine."""
        return len(self.nodes) > 1

    def processes_each(self, processes: int) -> int:
        """Return how many of the processes each machine runs."""
        return processes // len(self.nodes)

    @property
    def endpoint(self) -> str:
        """The address of the store, HOST:PORT."""
        return f"{self.nodes[0]}:{self.port}"

    def hold_store(self) -> Store:
        """Open the store, on the first machine; it is closed with the process."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        listening = socket.create_server((self.nodes[0], self.port), backlog=128)
        return TCPStore(
            self.nodes[0],
            self.port,
            is_master=True,
            timeout=_PATIENCE,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening.detach(),
        )

    def reach_store(self, patience: timedelta = _PATIENCE) -> Store:
        """Connect to the store, on any machine."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        return TCPStore(
            self.nodes[0], self.port, is_master=False, timeout=patience, wait_for_workers=False
        )

    def say(self, attempt: str, words: str) -> None:
        """Tell all machines how an attempt has ended; the first word counts."""
        if not self.shares_folder:
            self.reach_store().compare_set(f"ended-{attempt}", "", words)

    def said(self, attempt: str) -> str:
        """Return how an attempt has ended on another machine; empty if it has not."""
        if self.shares_folder:
            return ""
        store, key = self.reach_store(), f"ended-{attempt}"
        return bytes(store.get(key)).decode() if store.check([key]) else ""

    def name_interfaces(self, node: int) -> None:
        """Let the processes of this machine talk over its own address alone."""
        for backend in _BACKENDS:
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", interface_of(self.nodes[node]))


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address; that of the loopback is `lo`."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return name
    return "lo"


def own_node() -> int:
    """Return which of the machines this rank runs on."""
    return int(os.environ.get(NODE_VARIABLE, "0"))


def own_rank() -> int:
    """Return the number of this rank: those of the first machine come first.

    Torch's agents number the machines in the order in which they meet.
    """
    return own_node() * int(os.environ["LOCAL_WORLD_SIZE"]) + int(os.environ["LOCAL_RANK"])
