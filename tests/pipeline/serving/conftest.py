"""A server for all tests of this folder that do not change it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.serving.served import Registry, Serving, made_registry, serving


@pytest.fixture(scope="package")
def registry(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Registry:
    """Return a registry with one version, the champion; tests must not change it."""
    folder = tmp_path_factory.mktemp("served")
    before = Path.cwd()
    os.chdir(folder)
    made = made_registry(folder, empty_store)
    made.add(1)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.chdir(before)
    return made


@pytest.fixture(scope="package")
def server(registry: Registry) -> Iterator[Serving]:
    """Return a server of the champion; tests must not stop it."""
    with serving(registry.folder) as started:
        yield started


@pytest.fixture
def own_registry(tmp_path: Path, empty_store: Path) -> Registry:
    """Return a registry of the test's own, with one version, the champion."""
    made = made_registry(tmp_path, empty_store)
    made.add(1)
    return made
