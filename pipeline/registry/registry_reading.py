"""The registry as commands read it: from the tables of its store, else through MLflow's client.

MLflow's import takes longer than all that is read.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from patchline.pipeline.errors import PipelineError
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, check_paths, place
from patchline.pipeline.workspace.tracking.store_tables import Tables, open_tables
from patchline.pipeline.workspace.tracking.tracking_store import client, unless_deleted, use_store

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MLFLOW_DECIDES = frozenset({"MLFLOW_REGISTRY_URI", "MLFLOW_ENABLE_WORKSPACES", "MLFLOW_WORKSPACE"})
"""Variables that may name another registry than that of the store."""
_NAMES = (
    "SELECT name FROM registered_models WHERE workspace = 'default' AND name NOT IN (SELECT name "
    "FROM registered_model_tags WHERE key = 'mlflow.prompt.is_prompt' AND value = 'true')"
)
_ALIASES = (
    "SELECT alias, version FROM registered_model_aliases WHERE workspace = 'default' AND name = {0}"
)
_TAGS = "SELECT key, value FROM registered_model_tags WHERE workspace = 'default' AND name = {0}"
_VERSIONS = (
    "SELECT version, run_id, source, storage_location, creation_time FROM model_versions WHERE "
    "workspace = 'default' AND name = {0} AND current_stage != 'Deleted_Internal' "
    "ORDER BY version DESC"
)
_VERSION_TAGS = (
    "SELECT version, key, value FROM model_version_tags WHERE workspace = 'default' AND name = {0}"
)
_METRICS = "SELECT key, value, is_nan FROM latest_metrics WHERE run_uuid = {0}"
_TEST = "test/"


class StoredModel(NamedTuple):
    """A registered model."""

    aliases: dict[str, str]
    """The version that each alias points to."""
    tags: dict[str, str]


class StoredVersion(NamedTuple):
    """A version of a registered model."""

    version: int
    run_id: str
    """ID of the run that made it; empty without one."""
    source: str
    """URI of the package."""
    created_at: int
    """Milliseconds since the epoch."""
    tags: dict[str, str]


class _RegistryTables:
    """The tables of MLflow's registry."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.rows

    def names(self) -> list[str]:
        """Return the names of the registered models, in alphabetical order."""
        return sorted(name for (name,) in self._rows(_NAMES))

    def model(self, name: str) -> StoredModel | None:
        """Return a model; None if there is none."""
        if name not in self.names():
            return None
        aliases = {alias: str(version) for alias, version in self._rows(_ALIASES, name)}
        return StoredModel(aliases, dict(self._rows(_TAGS, name)))

    def versions(self, name: str) -> list[StoredVersion]:
        """Return the versions of a model, the newest first."""
        tags: dict[int, dict[str, str]] = defaultdict(dict)
        for version, key, value in self._rows(_VERSION_TAGS, name):
            tags[version][key] = value
        return [
            StoredVersion(version, run_id or "", str(source), created_at, tags[version])
            for version, run_id, source, _, created_at in self._rows(_VERSIONS, name)
        ]

    def place_of(self, name: str, version: str) -> str | None:
        """Return where the files of a version are; None if there is no such version."""
        rows = self._rows(_VERSIONS, name)
        found = (place or source for each, _, source, place, _ in rows if each == int(version))
        return next(found, None)

    def test_metrics(self, run_id: str) -> dict[str, float]:
        """Return the test metrics of a run; nothing if it was deleted."""
        rows = self._rows(_METRICS, run_id)
        metrics = {key: math.nan if is_nan else value for key, value, is_nan in rows}
        return {key: value for key, value in metrics.items() if key.startswith(_TEST)}


class _MlflowRegistry:
    """The same, asked of MLflow's client."""

    def __init__(self, store: MlflowClient) -> None:
        self._store = store

    def names(self) -> list[str]:
        return sorted(each.name for each in self._store.search_registered_models(max_results=1000))

    def model(self, name: str) -> StoredModel | None:
        with unless_deleted():  # or the store does not answer: what is asked next says which
            found = self._store.get_registered_model(name)
            aliases = {alias: str(version) for alias, version in found.aliases.items()}
            return StoredModel(aliases, dict(found.tags))
        return None

    def versions(self, name: str) -> list[StoredVersion]:
        quoted = name.replace("'", "''")
        found = self._store.search_model_versions(f"name = '{quoted}'", max_results=10_000)
        versions = [
            StoredVersion(
                int(each.version),
                each.run_id or "",
                str(each.source),
                each.creation_timestamp,
                dict(each.tags),
            )
            for each in found
        ]
        return sorted(versions, key=lambda each: -each.version)

    def place_of(self, name: str, version: str) -> str | None:
        with unless_deleted():
            return str(self._store.get_model_version_download_uri(name, version))
        return None

    def test_metrics(self, run_id: str) -> dict[str, float]:
        with unless_deleted():
            metrics = self._store.get_run(run_id).data.metrics
            return {key: value for key, value in metrics.items() if key.startswith(_TEST)}
        return {}


Registry = _RegistryTables | _MlflowRegistry
"""What commands ask the registry."""


def open_registry() -> Registry:
    """Return the registry, after it has answered.

    Raises:
        TrackingError: if the store does not answer.
        StorageError: if its SQLite file may not be written.
    """
    if not _MLFLOW_DECIDES & os.environ.keys():
        with contextlib.suppress(PipelineError, ImportError):  # MLflow's client tells the reason
            if place() != WORKSPACE.resolve():
                check_paths()
            tables = open_tables(use_store())
            if tables is not None:
                read = _RegistryTables(tables)
                read.names()
                return read
    return _MlflowRegistry(client())
