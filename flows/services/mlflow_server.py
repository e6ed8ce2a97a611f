"""The MLflow server: `python -P -m patchline.flows.services.mlflow_server FOLDER LIFELINE PORT`.

It serves the store that `MLFLOW_TRACKING_URI` names: an address with a password must not appear on
a command line, which every user of the machine can read.

This is one process instead of the several that `mlflow server` starts. It does not serve artifacts
in a folder: clients write them to the same place with and without a server. It serves those that a
team has on S3, so that its clients need no keys.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from patchline.flows.prefect_api import postgres
from patchline.pipeline import quiet_libraries
from patchline.pipeline.local_services import ensure_secret
from patchline.pipeline.web import gate
from patchline.pipeline.web.gate import Guarded, Limited
from patchline.pipeline.web.request_headers import App, Receive, Scope, Send
from patchline.pipeline.workers import supervised_process
from patchline.pipeline.workspace.files.paths import artifact_uri, sqlite_path, with_options
from patchline.pipeline.workspace.tracking import tracking_store
from patchline.pipeline.workspace.tracking.team_stores import TeamStores

_BUSY_SECONDS = 60
"""How long a writer waits for another writer of a SQLite store."""
HOME = "/#/experiments?workflowType=machine_learning"
"""The start page, in the layout for model training."""
ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # needed for language models only
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

DESTINATION_VARIABLE = "_MLFLOW_SERVER_ARTIFACT_DESTINATION"
SERVING_VARIABLE = "_MLFLOW_SERVER_SERVE_ARTIFACTS"
"""Where MLflow's server reads the place of the artifacts that it serves, and whether it does."""
_POOL = {"MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": 5, "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": 10}
"""What limits the connections of each of MLflow's pools, and SQLAlchemy's defaults."""
_KEPT = (
    "MLFLOW_SQLALCHEMYSTORE_",
    "MLFLOW_MYSQL_",
    "MLFLOW_CRYPTO_",
    "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_WEBHOOK_",
    "MLFLOW_HTTP_",
    "MLFLOW_S3_",
    "MLFLOW_BOTO_",
    "MLFLOW_GCS_",
)
"""Beginnings of the variables that our own server reads: database, webhooks, object stores."""


def environment(store: str) -> dict[str, str]:
    """Return the environment of a server of ours: without MLflow's settings for other servers.

    Hosts that another server may be called by, for example, would make ours refuse its clients.

    Args:
        store: URI of the tracking store that the server serves.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "_MLFLOW_"))
        or name.startswith(_KEPT)
        or name in quiet_libraries.NAMES
    }
    return {**kept, **ENVIRONMENT, "MLFLOW_TRACKING_URI": store}


def serve(folder: Path, port: int, store: str) -> None:
    """Serve the store until a signal arrives.

    Raises:
        TrackingError: if the store cannot be used.
    """
    warnings.simplefilter("ignore")  # MLflow's warnings do not concern the user
    os.environ.update(ENVIRONMENT)
    os.environ["MLFLOW_TRACKING_URI"] = store
    artifacts = os.environ.get(tracking_store.ARTIFACT_ROOT_VARIABLE)
    with postgres.one_at_a_time(store):
        tracking_store.client()  # creates a new database, under the lock that all of Patchline uses
    import uvicorn  # noqa: F401 - before MLflow, which detects a server by it
    from mlflow.server import constants

    database = sqlite_path(store)
    patient = with_options(store, timeout=_BUSY_SECONDS) if database else store
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = patient
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = patient
    beside = artifact_uri((database.parent if database else folder) / tracking_store.ARTIFACTS)
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = artifacts or beside
    os.environ["MLFLOW_TRACKING_URI"] = patient
    from mlflow.server import handlers
    from mlflow.server.fastapi_app import app

    # With the first request, MLflow would create the folder again if it has been moved by then.
    handlers._get_tracking_store()  # noqa: SLF001 - no public function opens them
    handlers._get_model_registry_store()  # noqa: SLF001 - as above
    served: App = app if database else Limited(app, _connections())

    async def renewing(scope: Scope, receive: Receive, send: Send) -> None:
        tracking_store.forget_keys()
        await served(scope, receive, send)

    guarded = Guarded(renewing, port, health="/health", home=HOME)
    gate.serve(guarded, ensure_secret(folder))


def artifact_environment(stores: TeamStores) -> dict[str, str]:
    """Return the variables that say where a team's artifacts are, and who transfers them."""
    if stores.artifacts is None:
        return {}
    if not stores.artifacts.startswith("s3://"):
        return {tracking_store.ARTIFACT_ROOT_VARIABLE: artifact_uri(Path(stores.artifacts))}
    if stores.artifact_access == "direct":
        return {tracking_store.ARTIFACT_ROOT_VARIABLE: stores.artifacts}
    return {
        tracking_store.ARTIFACT_ROOT_VARIABLE: "mlflow-artifacts:/",
        DESTINATION_VARIABLE: stores.artifacts,
        SERVING_VARIABLE: "true",
    }


def _connections() -> int:
    """Return how many connections each pool of MLflow may open."""
    return sum(int(os.environ.get(name) or default) for name, default in _POOL.items())


def _main() -> None:
    folder, _, [port] = supervised_process.begin()
    serve(folder, int(port), os.environ["MLFLOW_TRACKING_URI"])


if __name__ == "__main__":
    supervised_process.main(_main)
