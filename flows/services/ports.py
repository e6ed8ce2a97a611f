"""Ports on the loopback interface: which are free."""

from __future__ import annotations

import socket

from pipeline.errors import OrchestrationError

HOST = "127.0.0.1"
LAST = 65535
_FARTHEST = 100


def is_free(port: int) -> bool:
    """Return whether a server could listen there; closing connections of a former one are none."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def first_free(wanted: int, avoid: frozenset[int] = frozenset()) -> int:
    """Return the wanted port, or the next one that is free.

    Raises:
        OrchestrationError: if a hundred in a row are taken.
    """
    candidates = range(wanted, min(wanted + _FARTHEST, LAST + 1))
    for port in candidates:
        if port not in avoid and is_free(port):
            return port
    raise OrchestrationError(
        f"The ports {wanted} to {candidates[-1]} are all taken, or may not be used. Choose others "
        "with --prefect-port and --mlflow-port."
    )
