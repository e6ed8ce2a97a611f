"""What the tests of approval share."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL


@pytest.fixture
def here(served: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the folder of the module, whose fixture `served` starts a Prefect server for it."""
    monkeypatch.chdir(served)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{served / 'mlflow.db'}")
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    return served
