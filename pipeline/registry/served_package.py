"""The package that a server serves, found in the registry and on this machine without MLflow.

The store is the one that all commands use: a SQLite file and other databases are asked in SQL, an
MLflow server through its REST API.

What is not on a disk of this machine is downloaded into the workspace's cache by a process of its
own, because MLflow's import takes seconds and much memory:
`python -P -m patchline.pipeline.registry.served_package NAME VERSION FOLDER [EXPORT]`.

An export of a version (`patchline export`) is among the artifacts of the run that made the version.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import (
    ModelReferenceError,
    PipelineError,
    StorageError,
    TrackingError,
    error_class,
)
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.workers.host import environment_variables
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.paths import artifact_path, unsafe_reason
from patchline.pipeline.workspace.files.workspace_folder import make_folder, place
from patchline.pipeline.workspace.tracking.store_tables import (
    Tables,
    make_away_error,
    open_tables,
)
from patchline.pipeline.workspace.tracking.tracking_store import (
    absolute_store,
    use_store,
    without_login,
)

_REGISTRY, _TRACKING = "MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_URI"
_READING_SECONDS = 10.0
_NOT_THERE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
_VERSION_OF = "SELECT version FROM registered_model_aliases WHERE name = {0} AND alias = {1}"
_PLACE_OF = (
    "SELECT storage_location, source FROM model_versions WHERE name = {0} AND version = {1} "
    "AND current_stage != 'Deleted_Internal'"
)
_TAG_OF = "SELECT value FROM model_version_tags WHERE name = {0} AND version = {1} AND key = {2}"
_ARTIFACTS_OF = (
    "SELECT runs.artifact_uri FROM model_versions JOIN runs ON runs.run_uuid = "
    "model_versions.run_id WHERE model_versions.name = {0} AND model_versions.version = {1}"
)


class RegistryReader(ABC):
    """What a server asks the registry.

    Every method raises a `ServerAwayError` if the registry does not answer.
    """

    @abstractmethod
    def version_of(self, name: str, alias: str) -> str | None:
        """Return the version that an alias points to; None if there is no such model or alias."""

    @abstractmethod
    def place_of(self, name: str, version: str) -> str | None:
        """Return where a version's package is; None if there is no such version."""

    @abstractmethod
    def tag_of(self, name: str, version: str, key: str) -> str | None:
        """Return the value of a version's tag; None if there is no such version or tag."""

    @abstractmethod
    def artifacts_of(self, name: str, version: str) -> str | None:
        """Return where the artifacts of a version's run are; None if this store has no such run."""


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
    tables = open_tables(uri)
    if tables is not None:
        return _TableReader(tables)
    raise TrackingError(
        f"A server cannot read a registry at {redact_text(uri)}. Set {_TRACKING} to an http, "
        "https, sqlite or postgresql address."
    )


class _TableReader(RegistryReader):
    """Asks a database in SQL."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def version_of(self, name: str, alias: str) -> str | None:
        return self._first(_VERSION_OF, name, alias)

    def place_of(self, name: str, version: str) -> str | None:
        return self._first(_PLACE_OF, name, int(version))

    def tag_of(self, name: str, version: str, key: str) -> str | None:
        return self._first(_TAG_OF, name, int(version), key)

    def artifacts_of(self, name: str, version: str) -> str | None:
        return self._first(_ARTIFACTS_OF, name, int(version))

    def _first(self, question: str, *values: object) -> str | None:
        """Return the first value that is not null, as text."""
        rows = self._tables.rows(question, *values)
        return next((str(value) for row in rows for value in row if value is not None), None)


class _MlflowServer(RegistryReader):
    """An MLflow server."""

    def __init__(self, url: str) -> None:
        self._url = url
        own = [urllib.request.ProxyHandler({})] if environment_variables.is_here(url) else []
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
            raise make_away_error(self._url, error) from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise make_away_error(self._url, error) from error


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


SERVED_FORMS = ("int8", "onnx")
"""Exports that are served in the place of a package."""
EXPORT_FOLDER = "exports"
"""Among the artifacts of a run."""
EXPORTS_RECORD = "patchline.exports"
EXPORTS_TAG = f"mlflow.{EXPORTS_RECORD}"
"""Of a version: its exports by form, in JSON; each has its `folder` among the run's artifacts."""
_KEPT = 4
"""Downloaded packages that are kept, so that a rollback needs no download."""
_SECONDS = 600.0
"""After so long, a download is given up."""
_PART, _LOCK = ".part-", ".lock"
"""A folder so called, with the name of its package behind, is being downloaded into; the process
that does so locks the file beside it."""
_SEPARATOR = "\t"
"""Between the class of an error and its text."""


class MissingExportError(ModelReferenceError):
    """A version without the export that a server is to answer with; the text names no path."""


def fetch_served_package(
    reader: RegistryReader, name: str, version: str, form: str | None = None
) -> Path:
    """Return the folder of a package as MLflow stores it, downloaded if necessary.

    Args:
        reader: the reader that asks the registry where the files are.
        name: the name of the registered model.
        version: the version's number.
        form: the form of the export to serve in place of the package; None for the package itself.

    Raises:
        MissingExportError: if the version has no such export.
        ModelReferenceError: if there is no such version, or its files are missing.
        ServerAwayError: if the registry does not answer.
        StorageError: if the cache may not be written, or the download takes too long.
    """
    stored = reader.place_of(name, version)
    if stored is None:
        raise ModelReferenceError(
            f"'{name}' has no version {version}. `patchline models {name}` lists its versions."
        )
    if form is not None:
        return _fetch_served_export(reader, name, version, form)
    local = artifact_path(stored)
    if local is not None and local.is_dir():
        return local
    if local is not None:
        raise ModelReferenceError(
            f"The files of '{name}' version {version} are gone ({local} does not exist). Restore "
            "them, or use another version."
        )
    return _find_or_download(stored, name, version)


def _fetch_served_export(reader: RegistryReader, name: str, version: str, form: str) -> Path:
    """Return the folder of an export, downloaded if necessary.

    Raises:
        MissingExportError: if there is none, or its files are gone.
    """
    folder = _export_folder(reader.tag_of(name, version, EXPORTS_TAG), form)
    if folder is None:
        raise MissingExportError(
            f"Version {version} of '{name}' has no export as {form}. Write it with `patchline "
            f"export {name}/{version} --to {form}`, or serve the package itself."
        )
    artifacts = reader.artifacts_of(name, version)
    local = None if artifacts is None else artifact_path(artifacts)
    if local is None:
        return _find_or_download(artifacts or "", name, version, folder)
    if not (local / folder).is_dir():
        raise MissingExportError(
            f"The files of the export of '{name}' version {version} as {form} are gone. Write it "
            f"again with `patchline export {name}/{version} --to {form}`."
        )
    return local / folder


def _export_folder(tag: str | None, form: str) -> str | None:
    """Return the folder of an export in a run's artifacts, as a tag of the version has it."""
    try:
        row = json.loads(tag or "{}").get(form) or {}
        folder = str(row.get("folder") or "")
    except (ValueError, AttributeError):  # written by hand
        return None
    parts = folder.split("/")
    is_plain = len(parts) == 2 and parts[0] == EXPORT_FOLDER  # noqa: PLR2004 - two parts
    return folder if is_plain and not unsafe_reason(folder) else None


def _find_or_download(stored: str, name: str, version: str, export: str = "") -> Path:
    """Return the folder of a package or an export in the cache, where it is downloaded once."""
    digest = hashlib.sha256(f"{stored} {name} {version} {export}".encode()).hexdigest()[:16]
    cached = place() / "served" / digest
    if not cached.is_dir():
        _download(name, version, cached, export)
    os.utime(cached)
    _keep_newest(cached.parent)
    return cached


def _download(name: str, version: str, target: Path, export: str) -> None:
    with storage_errors(target):
        make_folder(target.parent)
    command = [sys.executable, "-P", "-m", __name__, name, version, str(target), export]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        _remove_abandoned(target.parent)
        raise StorageError(
            f"The files of '{name}' version {version} were not downloaded within {_SECONDS:g} "
            "seconds. Check the connection to the artifact store, and try again."
        ) from error
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines() or [""]
    kind, separator, sentence = lines[-1].partition(_SEPARATOR)
    if separator:
        raise error_class(kind)(sentence)
    raise ModelReferenceError(
        f"The files of '{name}' version {version} cannot be downloaded ({lines[-1][:200]}). "
        "Restore them, or use another version."
    )


def _keep_newest(folder: Path) -> None:
    """Remove all packages but the newest; what is being downloaded is none yet."""
    packages = [each for each in folder.iterdir() if each.is_dir() and each.name[0] != "."]
    packages.sort(key=_read_modification_time, reverse=True)
    for old in packages[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _read_modification_time(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another server has removed it
        return 0.0


def _remove_abandoned(folder: Path) -> None:
    """Remove what downloads have left behind whose process was killed."""
    for part in folder.glob(f"{_PART}*"):
        if part.is_dir():
            with file_locks.try_lock(_lock_of(part)) as free:
                if free:
                    shutil.rmtree(part, ignore_errors=True)


def _lock_of(part: Path) -> Path:
    return part.with_name(part.name + _LOCK)


def _main(name: str, version: str, target: Path, export: str) -> None:
    """Download a package or an export, and give it its name once it is whole."""
    from patchline.pipeline.registry.package_download import export_folder, package_folder
    from patchline.pipeline.registry.registered_models import ModelReference

    quiet_libraries.apply()
    redaction.install(streams=True)
    try:
        reference = ModelReference(name, version, f"models:/{name}/{version}")
        part = target.with_name(_PART + target.name)
        with storage_errors(target), file_locks.hold_lock(_lock_of(part)):
            if target.is_dir():  # another process was faster
                return
            shutil.rmtree(part, ignore_errors=True)
            _remove_abandoned(target.parent)
            part.mkdir()
            try:
                if export:
                    given = export_folder(reference, export, str(part))
                else:
                    given = package_folder(reference, part)
                if not given.is_relative_to(part):  # the store is on this machine
                    given = shutil.copytree(given, part / "package")
                given.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except PipelineError as error:
        sys.stderr.write(f"{type(error).__name__}{_SEPARATOR}{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), "".join(sys.argv[4:]))
