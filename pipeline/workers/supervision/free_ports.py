"""Free ports on the loopback interface."""

from __future__ import annotations

import socket

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.local_services import HOST

LAST_PORT = 65535
_TRIED = 100


def is_free_port(port: int) -> bool:
    """Return whether a server could listen on a port; closing connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def first_free_port(first: int, avoid: frozenset[int] = frozenset()) -> int:
    """Return the wanted port, or the next free one.

    Raises:
        OrchestrationError: if a hundred in a row are taken.
    """
    candidates = range(first, min(first + _TRIED, LAST_PORT + 1))
    for port in candidates:
        if port not in avoid and is_free_port(port):
            return port
    raise OrchestrationError(
        f"Ports {first} to {candidates[-1]} are all taken or may not be used. Choose others with "
        "--prefect-port and --mlflow-port."
    )
