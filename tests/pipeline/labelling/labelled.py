"""Servers of the page on which people label images, and what clients send to them."""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from patchline.pipeline.labelling.answers_table import TABLE_NAME, AnswersTable
from patchline.pipeline.labelling.image_order import ImageOrder
from patchline.pipeline.labelling.pool import Pool
from patchline.pipeline.labelling.server.advisor import Advisor
from patchline.pipeline.labelling.server.application import application
from patchline.pipeline.labelling.session import Session
from patchline.pipeline.serving.config import ServingConfig
from patchline.pipeline.serving.ready_server import uvicorn_config
from patchline.pipeline.serving.server import listening_socket
from tests.patience import patient
from tests.pipeline.serving.served import Reply, started

Offered = dict[str, Any]
"""What the page knows of an image."""


def write_images(folder: Path, count: int, side: int = 24) -> Path:
    """Write different small images without labels, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return folder


def rows_of(table: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with table.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@dataclass
class Page:
    """A page that is served."""

    port: int
    headers: Mapping[str, str]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, dict(response.headers), response.read())

    def post(self, path: str, **content: Any) -> Reply:
        """Send a JSON object."""
        headers = {"content-type": "application/json", **self.headers}
        return self.ask("POST", path, json.dumps(content).encode(), headers)

    def next(
        self, client: str, count: int = 1, holding: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the next images for a client."""
        reply = self.post("/next", client=client, count=count, holding=list(holding))
        assert reply.status == HTTPStatus.OK, reply.body
        images: list[Offered] = reply.json["images"]
        return images

    def answer(self, client: str, ids: Sequence[str], *labels: str, **more: Any) -> Reply:
        """Answer images."""
        content = {"verdict": "label", "person": client.partition("-")[0], **more}
        return self.post("/answer", client=client, ids=list(ids), labels=labels, **content)

    def progress(self) -> dict[str, Any]:
        """Return how far people are."""
        progress: dict[str, Any] = self.ask("GET", "/progress", headers=self.headers).json
        return progress


@dataclass
class Labelling(Page):
    """A command that serves the page."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    @property
    def table(self) -> Path:
        """The table that it writes."""
        return Path(self.ready["table"])

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(patient(60))


@contextmanager
def labelling(
    folder: Path, *arguments: str, headers: Mapping[str, str] | None = None
) -> Iterator[Labelling]:
    """Run `patchline label` on a folder, on any free port."""
    log = folder.parent / f"label-{time.monotonic_ns()}.log"
    command = ("label", str(folder), *arguments)
    with started(*command, folder=folder.parent, log=log) as (process, ready):
        port = int(ready["url"].rpartition(":")[2])
        yield Labelling(port, headers or {}, process, ready)


@contextmanager
def page_here(
    folder: Path, *classes: str, headers: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Page]:
    """Serve the page of a folder from a thread of this process, which spares the imports."""
    config = ServingConfig(port=0, **settings)
    pool, answers = Pool(folder, folder), AnswersTable(folder / TABLE_NAME)
    order = ImageOrder(list(pool.images), 0)
    session = Session(pool, answers, order, Advisor(pool, answers, order, None, "of the test"))
    with listening_socket(config) as listening, answers.open_for_people("http://here"):
        answers.add_classes(classes)
        port = listening.getsockname()[1]
        served = application(session, config, port, folder.name)
        server = uvicorn.Server(uvicorn_config(served, config))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Page(port, headers or {})
        finally:
            server.should_exit = True
            thread.join()
