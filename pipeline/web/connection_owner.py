"""The user who owns a loopback connection, according to the kernel."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

Address = tuple[str, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _STATE, _USER = 1, 2, 3, 7
"""Columns of the kernel's tables."""
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
"""What precedes an IPv4 address in the table for IPv6."""


def user_of(client: Address, server: Address) -> int | None:
    """Return the id of the user who owns the client's end of a connection.

    Returns:
        None if the kernel does not tell: not Linux, not IPv4, or no longer connected.
    """
    try:
        ends = (_written(client), _written(server))
    except OSError:
        return None
    for table in _TABLES:
        try:
            text = table.read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            if ends[0] not in line:
                continue
            words = line.split()
            addresses = (words[_LOCAL].removeprefix(_MAPPED), words[_REMOTE].removeprefix(_MAPPED))
            if addresses == ends and words[_STATE] == _ESTABLISHED:
                return int(words[_USER])
    return None


def _written(address: Address) -> str:
    """Return an IPv4 address and port as the tables write them.

    Raises:
        OSError: if it is not an IPv4 address.
    """
    number = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{number:08X}:{address[1]:04X}"
