"""`patchline up --serve MODEL` runs a server of a registered model beside the others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from patchline.pipeline.local_services import answers
from patchline.pipeline.tracking.tracking_store import client
from tests.flows.services.local_servers import serving
from tests.patience import until
from tests.pipeline.serving.served import NAME, Serving, made_registry, png, wait_for_version
from tests.postgres_server import free_port


@pytest.mark.slow
def test_up_serves_a_model_and_down_ends_it(tmp_path: Path, empty_store: Path) -> None:
    """The model is served through the MLflow server of `up`, and follows its alias."""
    registry = made_registry(tmp_path, empty_store)
    registry.add(1)
    second = registry.add(2, alias=None)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    serve = ("--serve", NAME, "--serve-port", str(free_port()))
    with serving(tmp_path, *serve) as servers:
        port = int(serve[-1])
        server = Serving(subprocess.Popen(["true"], text=True), port, {}, tmp_path)
        assert server.predict(png(1)).json["version"] == "1"
        client().set_registered_model_alias(NAME, "champion", second)
        wait_for_version(server, second)
        again = servers.up("--serve", "other")
        assert again.code == 1
        assert f"already running and serve {NAME}" in again.err
        servers.process("model_server").kill()
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "it was not started again")
    assert not answers(f"http://127.0.0.1:{port}/healthz")
