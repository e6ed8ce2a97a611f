"""Servers of the page on which people label images, and what clients send to them."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from patchline.pipeline.data.labels.answers.answers_table import TABLE_NAME, AnswersTable
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import open_listening_socket
from patchline.pipeline.web.uvicorn_server import uvicorn_config
from patchline.plugins.tools.label.pool import Pool
from patchline.plugins.tools.label.ranking import ImageOrder
from patchline.plugins.tools.label.server.advisor import Advisor
from patchline.plugins.tools.label.server.application import application
from patchline.plugins.tools.label.session import Session
from tests.pipeline.registry.serving.served import Reply, Serving, started


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


class Page(Serving):
    """A page that is served, by a process or by a thread of this one."""

    def __init__(
        self,
        port: int,
        headers: Mapping[str, str] | None,
        process: Any = None,
        ready: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(process, port, dict(ready or {}), Path())
        self.headers = dict(headers or {})

    def post(self, path: str, **content: Any) -> Reply:
        """Send a JSON object."""
        headers = {"content-type": "application/json", **self.headers}
        return self.ask("POST", path, json.dumps(content).encode(), headers)

    def next(
        self, client: str, count: int = 1, holding: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the next images for a client."""
        reply = self.post("/next", client=client, count=count, holding=list(holding))
        assert reply.status == 200, reply.body
        return list(reply.json["images"])

    def answer(self, client: str, ids: Sequence[str], *labels: str, **more: Any) -> Reply:
        """Answer images."""
        content = {"verdict": "label", "person": client.partition("-")[0], **more}
        return self.post("/answer", client=client, ids=list(ids), labels=labels, **content)

    def progress(self) -> dict[str, Any]:
        """Return how far people are."""
        return dict(self.ask("GET", "/progress", headers=self.headers).json)


@contextmanager
def labelling(
    folder: Path, *arguments: str, headers: Mapping[str, str] | None = None
) -> Iterator[Page]:
    """Run `patchline label` on a folder, on any free port."""
    log = folder.parent / f"label-{time.monotonic_ns()}.log"
    command = ("label", str(folder), *arguments)
    with started(*command, folder=folder.parent, log=log) as (process, ready):
        yield Page(int(ready["url"].rpartition(":")[2]), headers, process, ready)


@contextmanager
def page_here(
    folder: Path, *classes: str, headers: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Page]:
    """Serve the page of a folder from a thread of this process, which spares the imports."""
    config = ServingConfig(port=0, **settings)
    pool, answers = Pool(folder, folder), AnswersTable(folder / TABLE_NAME)
    order = ImageOrder(list(pool.images), 0)
    session = Session(pool, answers, order, Advisor(pool, answers, order, None, "of the test"))
    with open_listening_socket(config) as listening, answers.open_for_people("http://here"):
        answers.add_classes(classes)
        port = listening.getsockname()[1]
        served = application(session, config, port, folder.name)
        server = uvicorn.Server(uvicorn_config(served, config))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Page(port, headers)
        finally:
            server.should_exit = True
            thread.join()
