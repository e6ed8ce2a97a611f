"""The MLflow server: `python -P -m flows.services.mlflow_server FOLDER LIFELINE PORT`.

It serves the store that `MLFLOW_TRACKING_URI` names: an address with a password must not stand on a
command line, which every user of the machine can read.

One process instead of the family that `mlflow server` starts. Artifacts are not served: each client
writes them where it would without a server, so that they are there with and without one.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from flows.services import child, ports
from flows.services.gate import Gate, Guarded
from pipeline.local_login import ensure_secret
from pipeline.tracking import tracking_store

_GOODBYE_SECONDS = 3
_BUSY_SECONDS = 60
"""How long a writer waits for another one in a SQLite store."""
HOME = "/#/experiments?workflowType=machine_learning"
"""The page to begin with, in the layout for training."""
ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # what it does for language models
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def serve(folder: Path, port: int, store: str) -> None:
    """Serve the store until a signal comes.

    Raises:
        TrackingError: if the store cannot be used.
    """
    warnings.simplefilter("ignore")  # they are MLflow's own affair
    os.environ.update(ENVIRONMENT)
    os.environ["MLFLOW_TRACKING_URI"] = store
    tracking_store.client()  # creates a new database, under the lock that all of Patchline uses
    import uvicorn
    from mlflow.server import constants  # behind uvicorn, which tells MLflow that it is a server

    patient = f"{store}?timeout={_BUSY_SECONDS}" if store.startswith("sqlite:") else store
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = patient
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = patient
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = str(folder / "mlruns")
    os.environ["MLFLOW_TRACKING_URI"] = patient
    from mlflow.server.fastapi_app import app

    guarded = Guarded(app, port, health="/health", home=HOME)
    uvicorn.run(
        Gate(guarded, ensure_secret(folder)),
        host=ports.HOST,
        port=port,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # what a client says about its address is not believed
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )


def _main() -> None:
    folder, _, [port] = child.begin()
    serve(folder, int(port), os.environ["MLFLOW_TRACKING_URI"])


if __name__ == "__main__":
    child.main(_main)
