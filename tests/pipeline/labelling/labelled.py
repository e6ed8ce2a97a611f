"""A real server of the page on which people label images, and what clients send to it."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.patience import patient
from tests.pipeline.serving.served import Reply, Serving, started

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
class Labelling(Serving):
    """A server that runs."""

    headers: Mapping[str, str]

    @property
    def table(self) -> Path:
        """The table that it writes."""
        return Path(self.ready["table"])

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
        yield Labelling(process, port, ready, log, headers or {})
