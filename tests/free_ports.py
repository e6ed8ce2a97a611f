"""Ports that a test may listen on after a while, without finding that another test has taken them.

They lie below those that the system hands out by itself, for connections and for port 0, and each
worker of the test run has a range of its own.
"""

from __future__ import annotations

import itertools
import os

from patchline.pipeline.workers.supervised_process import is_free_port

_FIRST, _OF_A_WORKER = 20_000, 500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = itertools.cycle(
    range(_FIRST + _worker * _OF_A_WORKER, _FIRST + (_worker + 1) * _OF_A_WORKER)
)


def free_port() -> int:
    """Return a port that nobody listens on; not the same one soon."""
    return next(port for port in _ports if is_free_port(port))
