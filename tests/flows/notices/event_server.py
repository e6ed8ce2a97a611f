"""One Prefect server for all tests of a process that need events: it takes seconds to start."""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path

from flows.temporary_server import TemporaryServer
from tests.conftest import PREFECT_DATABASE, SERVER_SECRET

_FLUSH = "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL"


@cache
def api_url() -> str:
    """Return the address of the server, which has a database of its own and writes events at once.

    Automations and deployments of other tests stay away from it. It ends with the process.
    """
    folder = tempfile.TemporaryDirectory(prefix="patchline-events-")
    before = os.environ[PREFECT_DATABASE]
    os.environ[PREFECT_DATABASE] = f"sqlite+aiosqlite:///{Path(folder.name) / 'prefect.db'}"
    os.environ[_FLUSH] = "0.2"
    started = TemporaryServer(SERVER_SECRET)
    os.environ[PREFECT_DATABASE] = before
    del os.environ[_FLUSH]
    atexit.register(folder.cleanup)
    atexit.register(started.stop)
    started.wait()
    return started.url
