"""What a company laptop brings along: a proxy for everything, and settings for other servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

OF_OTHERS = """\
[api]
auth_string = "somebody:else"
ssl_cert_file = "/nowhere/ca.pem"
[client]
csrf_support_enabled = false
[client.custom_headers]
Authorization = "Bearer of-another-server"
[server.api]
auth_string = "somebody:else"
base_path = "/prefect"
csrf_protection_enabled = true
default_limit = 20
[tasks]
default_retries = 3
"""
"""A `prefect.toml` for another server; each line would break ours, or its clients."""


@dataclass(frozen=True)
class RecordingProxy:
    """A proxy that refuses everything and remembers it."""

    port: int
    heard: list[str] = field(default_factory=list)
    """The first line of each request."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name it for everything, twice as a SOCKS proxy."""
        address = f"127.0.0.1:{self.port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY")
        socks = dict.fromkeys(("ALL_PROXY", "all_proxy"), f"socks5://{address}")
        none = dict.fromkeys(("no_proxy", "NO_PROXY"), "")
        return {**dict.fromkeys(names, f"http://{address}"), **socks, **none}


@contextmanager
def recording_proxy() -> Iterator[RecordingProxy]:
    """Run a proxy on this machine while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = RecordingProxy(listening.getsockname()[1])
        threading.Thread(target=_listen, args=(listening, proxy), daemon=True).start()
        yield proxy


def _listen(listening: socket.socket, proxy: RecordingProxy) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # the block has ended
        with connection:
            connection.settimeout(5.0)
            try:
                proxy.heard.append(repr(connection.recv(200)))
                connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            except OSError as error:
                proxy.heard.append(repr(error))
