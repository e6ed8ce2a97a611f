"""`patchline up --serve MODEL` runs a server of a registered model beside the others."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from patchline.flows.services import service_processes
from patchline.pipeline.local_services import answers
from patchline.pipeline.supervision import supervisor_lifeline
from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import patchline, patchline_here
from tests.flows.services.local_servers import Servers, free_port
from tests.patience import patient, until
from tests.pipeline.serving.served import NAME, Serving, made_registry, png, wait_for_version


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--serve", "a b"], "'a b' is not a model reference"),
        (["--serve", "flowers", "--serve-port", "0"], "--serve-port 0 is not a port"),
        (["--serve", "flowers", "--serve-port", "5000"], "is the port of another server"),
    ],
)
def test_a_wrong_model_or_port_is_said(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """Nothing is started then."""
    done = patchline_here("up", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert sentence in done.err


def test_the_program_serves_until_its_supervisor_ends(tmp_path: Path, empty_store: Path) -> None:
    """It answers, and a supervisor that is killed leaves nothing behind."""
    made_registry(tmp_path, empty_store).add(1)
    lifeline, port = tmp_path / "lifeline", free_port()
    held = supervisor_lifeline.hold(lifeline)
    command = service_processes.command("model_server", tmp_path, lifeline, NAME, port)
    with subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ)) as process:
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "it never answered")
            assert process.poll() is None
            os.close(held)
            process.wait(patient(30))
        finally:
            process.kill()


@pytest.mark.slow
def test_up_serves_a_model_and_down_ends_it(tmp_path: Path, empty_store: Path) -> None:
    """The model is served through the MLflow server of `up`, and follows its alias."""
    registry = made_registry(tmp_path, empty_store)
    registry.add(1)
    second = registry.add(2, alias=None)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    servers = Servers(tmp_path)
    prefect, mlflow = servers.ports
    ports = ("--prefect-port", str(prefect), "--mlflow-port", str(mlflow))
    serve = ("--serve", NAME, "--serve-port", str(free_port()))
    try:
        done = patchline("up", *ports, *serve, "--json", cwd=tmp_path, env=servers.env)
        assert done.code == 0, done.err
        port = int(json.loads(done.out)["serve_url"].rpartition(":")[2])
        process = subprocess.Popen(["true"], text=True)
        process.wait()
        server = Serving(process, port, {}, tmp_path / ".patchline/services/logs/model_server.log")
        assert server.predict(png(1)).json["version"] == "1"
        client().set_registered_model_alias(NAME, "champion", second)
        wait_for_version(server, second)
        again = patchline("up", *ports, "--serve", "other", cwd=tmp_path, env=servers.env)
        assert again.code == 1
        assert f"already running and serve {NAME}" in again.err
        servers.process("model_server").kill()
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "it was not started again")
    finally:
        assert servers.down("--now").code == 0
    assert not answers(f"http://127.0.0.1:{port}/healthz")
