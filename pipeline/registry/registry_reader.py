"""Read what a server needs of the registry without MLflow, whose import takes seconds.

The store is the one that all commands use: a SQLite file and other databases are asked in SQL, an
MLflow server through its REST API.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sqlite3
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from patchline.pipeline.errors import PipelineError, ServerAwayError, TrackingError
from patchline.pipeline.redaction import redacted
from patchline.pipeline.workers.host import proxies
from patchline.pipeline.workspace.files.path_uris import sqlite_path
from patchline.pipeline.workspace.tracking.tracking_store import (
    absolute_store,
    use_store,
    without_login,
)

_REGISTRY, _TRACKING = "MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_URI"
_READING_SECONDS = 10.0
_NOT_THERE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
_DATABASES = re.compile(r"^(postgresql|mysql|mssql|sqlite)")
_VERSION_OF = "SELECT version FROM registered_model_aliases WHERE name = {0} AND alias = {1}"
_PLACE_OF = (
    "SELECT storage_location, source FROM model_versions WHERE name = {0} AND version = {1} "
    "AND current_stage != 'Deleted_Internal'"
)
_TAG_OF = "SELECT value FROM model_version_tags WHERE name = {0} AND version = {1} AND key = {2}"
_MOST_VALUES = 3
_ARTIFACTS_OF = (
    "SELECT runs.artifact_uri FROM model_versions JOIN runs ON runs.run_uuid = "
    "model_versions.run_id WHERE model_versions.name = {0} AND model_versions.version = {1}"
)


class RegistryReader(Protocol):
    """What a server asks the registry."""

    def version_of(self, name: str, alias: str) -> str | None:
        """Return the version that an alias points to; None if there is no such model or alias.

        Raises:
            ServerAwayError: if the registry does not answer.
        """
        ...

    def place_of(self, name: str, version: str) -> str | None:
        """Return where a version's package is; None if there is no such version.

        Raises:
            ServerAwayError: if the registry does not answer.
        """
        ...

    def tag_of(self, name: str, version: str, key: str) -> str | None:
        """Return the value of a version's tag; None if there is no such version or tag.

        Raises:
            ServerAwayError: if the registry does not answer.
        """
        ...

    def artifacts_of(self, name: str, version: str) -> str | None:
        """Return where the artifacts of a version's run are; None if this store has no such run.

        Raises:
            ServerAwayError: if the registry does not answer.
        """
        ...


def registry_reader() -> RegistryReader:
    """Return a reader of the registry that all commands use.

    Raises:
        TrackingError: if it is of a kind that only MLflow itself can read.
        ServerAwayError: if the folder has a team's stores, which only its servers use.
    """
    uri = use_store()
    if registry := os.environ.get(_REGISTRY):
        uri = without_login(absolute_store(registry))
    if uri.startswith(("http://", "https://")):
        return _MlflowServer(uri.rstrip("/"))
    file = sqlite_path(uri)
    if file is not None:
        return _SqliteFile(file)
    if _DATABASES.match(uri):
        return _Database(uri)
    raise TrackingError(
        f"A server cannot read a registry at {redacted(uri)}. Set {_TRACKING} to an http, https, "
        "sqlite or postgresql address."
    )


class _SqliteFile:
    """A SQLite store, which is opened for each question: it may be replaced meanwhile."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def version_of(self, name: str, alias: str) -> str | None:
        return _first(self._rows(_VERSION_OF, name, alias))

    def place_of(self, name: str, version: str) -> str | None:
        return _first(self._rows(_PLACE_OF, name, int(version)))

    def tag_of(self, name: str, version: str, key: str) -> str | None:
        return _first(self._rows(_TAG_OF, name, int(version), key))

    def artifacts_of(self, name: str, version: str) -> str | None:
        return _first(self._rows(_ARTIFACTS_OF, name, int(version)))

    def _rows(self, question: str, *values: object) -> list[Any]:
        if not self._file.is_file():
            raise _away(str(self._file), FileNotFoundError("there is no such file"))
        try:
            connection = sqlite3.connect(self._file, timeout=_READING_SECONDS)
            with contextlib.closing(connection):
                return connection.execute(question.format(*"?" * _MOST_VALUES), values).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                return []
            raise _away(str(self._file), error) from error


class _Database:
    """A database server."""

    def __init__(self, uri: str) -> None:
        import sqlalchemy

        self._uri = uri
        self._engine = sqlalchemy.create_engine(uri, pool_pre_ping=True, pool_size=1)

    def version_of(self, name: str, alias: str) -> str | None:
        return _first(self._rows(_VERSION_OF, name, alias))

    def place_of(self, name: str, version: str) -> str | None:
        return _first(self._rows(_PLACE_OF, name, int(version)))

    def tag_of(self, name: str, version: str, key: str) -> str | None:
        return _first(self._rows(_TAG_OF, name, int(version), key))

    def artifacts_of(self, name: str, version: str) -> str | None:
        return _first(self._rows(_ARTIFACTS_OF, name, int(version)))

    def _rows(self, question: str, *values: object) -> list[Any]:
        import sqlalchemy

        names = [f"value_{position}" for position in range(_MOST_VALUES)]
        text = sqlalchemy.text(question.format(*(f":{each}" for each in names)))
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(text, dict(zip(names, values, strict=False))))
        except sqlalchemy.exc.ProgrammingError as error:
            if "does not exist" in str(error) or "doesn't exist" in str(error):
                return []
            raise _away(self._uri, error) from error
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            raise _away(self._uri, error) from error


class _MlflowServer:
    """An MLflow server."""

    def __init__(self, url: str) -> None:
        self._url = url
        own = [urllib.request.ProxyHandler({})] if proxies.is_here(url) else []
        secure = urllib.request.HTTPSHandler(context=_certificates())
        self._opener = urllib.request.build_opener(*own, secure)

    def version_of(self, name: str, alias: str) -> str | None:
        answer = self._get("registered-models/alias", name=name, alias=alias)
        version = answer.get("model_version", {}).get("version")
        return str(version) if version else None

    def place_of(self, name: str, version: str) -> str | None:
        answer = self._get("model-versions/get-download-uri", name=name, version=version)
        return answer.get("artifact_uri") or None

    def tag_of(self, name: str, version: str, key: str) -> str | None:
        tags = self._version(name, version).get("tags", [])
        return next((str(tag["value"]) for tag in tags if tag.get("key") == key), None)

    def artifacts_of(self, name: str, version: str) -> str | None:
        run_id = self._version(name, version).get("run_id")
        run = self._get("runs/get", run_id=run_id).get("run", {}) if run_id else {}
        return run.get("info", {}).get("artifact_uri") or None

    def _version(self, name: str, version: str) -> dict[str, Any]:
        answer = self._get("model-versions/get", name=name, version=version)
        return dict(answer.get("model_version", {}))

    def _get(self, what: str, **values: str) -> dict[str, Any]:
        url = f"{self._url}/api/2.0/mlflow/{what}?{urlencode(values)}"
        request = urllib.request.Request(url, headers=_login())  # noqa: S310 - http or https
        try:
            with self._opener.open(request, timeout=_READING_SECONDS) as response:
                return _object(response.read())
        except urllib.error.HTTPError as error:
            answer = _object(error.read())
            if answer.get("error_code") in _NOT_THERE:
                return {}
            raise _away(self._url, error) from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise _away(self._url, error) from error


def _login() -> dict[str, str]:
    """Return the header that signs in, as MLflow's client does from the same variables."""
    user, token = (
        os.environ.get("MLFLOW_TRACKING_USERNAME"),
        os.environ.get("MLFLOW_TRACKING_TOKEN"),
    )
    if user:
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {"authorization": f"Bearer {token}"} if token else {}


def _certificates() -> ssl.SSLContext:
    """Return what servers are checked with, as MLflow's client does from the same variables.

    Raises:
        TrackingError: if the file of certificates cannot be read.
    """
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return trusting
    given = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or os.environ.get(
        "REQUESTS_CA_BUNDLE"
    )
    try:
        return ssl.create_default_context(cafile=given or None)
    except OSError as error:
        raise TrackingError(
            f"The certificates in {given} cannot be read ({error.strerror or error}). Correct "
            "MLFLOW_TRACKING_SERVER_CERT_PATH."
        ) from error


def _object(content: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer; empty if it is none."""
    with contextlib.suppress(ValueError):
        answer = json.loads(content)
        if isinstance(answer, dict):
            return answer
    return {}


def _first(rows: list[Any]) -> str | None:
    """Return the first value that is not null, as text."""
    return next((str(value) for row in rows for value in row if value is not None), None)


def _away(uri: str, error: Exception) -> PipelineError:
    reason = redacted(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return ServerAwayError(
        f"The MLflow store {redacted(uri)} does not answer ({reason[:200]}). Check {_TRACKING} and "
        "the server."
    )
