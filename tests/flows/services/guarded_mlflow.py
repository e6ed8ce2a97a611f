"""An MLflow server that asks for user and password: `python -m … PORT USER PASSWORD_FILE`.

It stands for a team's server behind a proxy, which is what guards MLflow mostly. The store is a
SQLite file in the working directory.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

Message = Callable[..., Awaitable[Any]]


class Guard:
    """Let those pass who know the password; `/health` is for all."""

    def __init__(self, user: str, password: str) -> None:
        from mlflow.server.fastapi_app import app

        self._app: Any = app
        self._expected = b"Basic " + base64.b64encode(f"{user}:{password}".encode())

    async def __call__(self, scope: dict[str, Any], receive: Message, send: Message) -> None:
        """Answer one request."""
        given = dict(scope.get("headers", ())).get(b"authorization")
        if scope["type"] != "http" or scope["path"] == "/health" or given == self._expected:
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})


def _main() -> None:
    port, user, password_file = sys.argv[1:]
    store = f"sqlite:///{Path('mlflow.db').resolve()}"
    for name in ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_REGISTRY_STORE"):
        os.environ[name] = store
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(Path("mlruns").resolve())
    os.environ["MLFLOW_TRACKING_URI"] = store
    from patchline.pipeline.tracking import tracking_store

    tracking_store.client()  # makes the database
    password = Path(password_file).read_text(encoding="utf-8")
    uvicorn.run(Guard(user, password), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    _main()
