"""A server for all tests of this folder that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.registry.serving.served import (
    Registry,
    Serving,
    lasting_registry,
    made_registry,
    serving,
)


@pytest.fixture(scope="package")
def registry(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Registry:
    """Return a registry with one version, the champion; tests must not change it."""
    return lasting_registry(tmp_path_factory.mktemp("served"), empty_store)


@pytest.fixture(scope="package")
def server(registry: Registry) -> Iterator[Serving]:
    """Return a server of the champion; tests must not stop it."""
    store = f"sqlite:///{registry.folder / 'mlflow.db'}"
    with serving(registry.folder, env={"MLFLOW_TRACKING_URI": store}) as started:
        yield started


@pytest.fixture
def own_registry(tmp_path: Path, empty_store: Path) -> Registry:
    """Return a registry of the test's own, with one version, the champion."""
    made = made_registry(tmp_path, empty_store)
    made.add(1)
    return made
