"""Prefect servers for the tests of one module or session, which this process's settings name."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

from patchline.flows.prefect_api.temporary_server import TemporaryServer
from patchline.pipeline.local_services import USER, answers
from tests.conftest import PREFECT_DATABASE, SERVER_SECRET
from tests.patience import patient
from tests.process_owners import VARIABLE, owned_by

_PAIR = base64.b64encode(f"{USER}:{SERVER_SECRET}".encode()).decode()
PROOF = {"Authorization": f"Basic {_PAIR}"}
"""The header by which a program without Prefect's client logs in."""


class LastingServer:
    """A server with a database of its own in a folder; it starts again if a test has broken it.

    It has an API and no services: nothing is scheduled unless a test asks for it.
    """

    def __init__(self, folder: Path, empty_prefect: Path, **environment: str) -> None:
        database = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
        if not (folder / "prefect.db").exists():
            shutil.copy(empty_prefect, folder / "prefect.db")
        self._environment = {PREFECT_DATABASE: database, **environment}
        self._owner = os.environ[VARIABLE]
        self._server = self._started()

    def url(self) -> str:
        """Return the address of its API, which answers."""
        if not answers(f"{self._server.url}/health", patient(30)):
            self._server.stop()
            self._server = self._started()
        return self._server.url

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def _started(self) -> TemporaryServer:
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            with owned_by(self._owner):
                server = TemporaryServer(SERVER_SECRET)
        finally:
            os.environ.clear()
            os.environ.update(before)
        server.wait()
        return server
