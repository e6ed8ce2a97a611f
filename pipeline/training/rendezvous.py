"""Where the machines of a training with `training.nodes` meet, and over which interface they talk.

The first machine offers the job at its address; the others ask for it there.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from contextlib import closing
from datetime import timedelta
from typing import NamedTuple

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from pipeline.errors import ConfigError
from pipeline.training.job import TrainingJob

LOOPBACK = "127.0.0.1"
_JOB_KEY = "patchline/job"
_ANSWER = timedelta(seconds=30)
_POLL_SECONDS = 0.5


class Rendezvous(NamedTuple):
    """The address of the first machine that `training.rendezvous` names."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Rendezvous:
        """Return the parts of HOST:PORT; an IPv6 address stands in brackets.

        Raises:
            ConfigError: if it is something else.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ConfigError(
                f"{text} is not an address. Give the name or IP address of the first machine and a "
                "free port, such as 10.0.0.5:29400."
            )
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def own_address(self) -> str:
        """Return the address of this machine from which the first one is reached.

        Raises:
            ConfigError: if there is no machine of that name, or no way to it.
        """
        try:
            [family, *_, address] = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_DGRAM
            )[0]
            with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:
            raise ConfigError(
                f"This machine cannot reach {self.host} ({error}). Check the name of the first "
                "machine, or give its IP address."
            ) from error

    def offer(self, job: TrainingJob) -> TCPStore:
        """Offer the job to the other machines, for as long as the returned store exists.

        Raises:
            ConfigError: if the address is not this machine's, or its port is in use.
        """
        host = self.own_address()
        numbers = {info[4][0] for info in socket.getaddrinfo(self.host, self.port)}
        if host not in numbers and not any(ipaddress.ip_address(n).is_loopback for n in numbers):
            raise ConfigError(
                f"training.rendezvous is {self}, but this machine has the address {host}. Name "
                "the machine on which the run is started."
            )
        try:
            store = TCPStore(
                self.host, self.port, is_master=True, wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            raise ConfigError(
                f"training.rendezvous is {self}, but the port cannot be opened; it may be in use. "
                "Choose another one."
            ) from error
        store.set(_JOB_KEY, job.model_dump_json())
        return store

    def wait_for_job(self) -> TrainingJob:
        """Wait until the first machine offers a job, and return it."""
        while True:
            try:
                with closing(socket.create_connection((self.host, self.port), timeout=5)):
                    pass
                store = TCPStore(
                    self.host,
                    self.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=_ANSWER,
                )
                return TrainingJob.model_validate_json(store.get(_JOB_KEY))
            except (OSError, RuntimeError):  # nothing there, or it is only starting or ending
                time.sleep(_POLL_SECONDS)


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address.

    Raises:
        ConfigError: if this machine has no such address.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    raise ConfigError(
        f"No network interface of this machine has the address {address}. Set GLOO_SOCKET_IFNAME, "
        "and NCCL_SOCKET_IFNAME on GPUs, to the one that leads to the other machines."
    )
