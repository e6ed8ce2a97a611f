"""A real server of a tiny registered model, and what clients send to it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.conftest import PATCHLINE, encoded
from tests.patience import patient, until
from tests.pipeline.registry.made_versions import CLASSES, made_package

NAME = "colours"


@dataclass
class Registry:
    """A store with versions of one model, each of other weights."""

    folder: Path

    def add(
        self,
        seed: int,
        alias: str | None = "champion",
        thresholds: tuple[float, ...] = (),
        classes: tuple[str, ...] = CLASSES,
    ) -> str:
        """Register a version, and let an alias point to it; return its number."""
        package = self.folder / "packages" / str(seed)
        made_package(package / "artifacts", classes, seed, thresholds=thresholds)
        store = client()
        if not any(each.name == NAME for each in store.search_registered_models()):
            store.create_registered_model(NAME)
        version = str(store.create_model_version(NAME, source=str(package)).version)
        if alias:
            self.point(alias, version)
        return version

    @staticmethod
    def point(alias: str, version: str) -> None:
        """Let an alias point to a version, as MLflow's UI does."""
        client().set_registered_model_alias(NAME, alias, version)

    def package(self, seed: int) -> PackagedModel:
        """Return what a version's answers are compared with."""
        artifacts = self.folder / "packages" / str(seed) / "artifacts"
        return PackagedModel(artifacts / "model.onnx", artifacts / "model.json")


def made_registry(folder: Path, empty_store: Path) -> Registry:
    """Return a new registry in a folder, which becomes the working directory's store."""
    shutil.copy(empty_store, folder / "mlflow.db")
    return Registry(folder)


def lasting_registry(folder: Path, empty_store: Path, **version: Any) -> Registry:
    """Return a registry with one version, the champion, whatever the tests before have left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        made = made_registry(folder, empty_store)
        made.add(1, **version)
    return made


@dataclass
class Reply:
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The JSON in it."""
        return json.loads(self.body)


@dataclass
class Serving:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int
    ready: dict[str, Any]
    log: Path

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, named, response.read())
        finally:
            connection.close()

    def predict(self, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Send an image as a raw body."""
        return self.ask("POST", "/predict", body, {"content-type": "image/png", **(headers or {})})

    def ask_json(self, path: str, content: object) -> Reply:
        """Send a JSON object."""
        body = json.dumps(content).encode()
        return self.ask("POST", path, body, {"content-type": "application/json"})

    def stop(self) -> int:
        """Stop it with SIGTERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patient(60))


@contextmanager
def serving(
    folder: Path, *arguments: str, model: str = NAME, env: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """Run `patchline serve` in a folder, on any free port."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    with started("serve", model, *arguments, folder=folder, log=log, env=env) as (process, ready):
        yield Serving(process, int(ready["url"].rpartition(":")[2]), ready, log)


@contextmanager
def packaged(folder: Path) -> Iterator[int]:
    """Serve the package in a folder without a registry; return the port."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "patchline.pipeline.registry.serving",
         "--package", str(folder), "--name", NAME, "--model-version", "1", "--port", "0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = next((line for line in process.stderr if "Serving" in line), "")
        assert said, process.wait(patient(60))
        yield int(said.rpartition("port ")[2].strip(".\n"))
    finally:
        process.terminate()
        process.wait(patient(60))


@contextmanager
def started(
    *arguments: str, folder: Path, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a command that serves, on any free port; its process, and what it says when ready."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            [str(PATCHLINE), *arguments, "--port", "0", "--json"],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()


def png(seed: int, side: int = 24) -> bytes:
    """Return a small image of a random dark colour as a PNG file: no class is certain."""
    generator = np.random.default_rng(seed)
    pixels = np.broadcast_to(generator.integers(0, 48, 3, dtype=np.uint8), (side, side, 3))
    return encoded(np.ascontiguousarray(pixels))


def metric(text: str, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = [line for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def wait_for_version(server: Serving, version: str) -> None:
    """Wait until a version answers."""
    until(
        lambda: server.predict(png(0)).json["version"] == version,
        lambda: f"version {version} never answered: {server.log.read_text()}",
        seconds=60,
    )
