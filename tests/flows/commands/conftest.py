"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.conftest import Command


@pytest.fixture
def command(store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command in the folder of the module's fixture `store`."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    return run_here
