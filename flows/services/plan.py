"""What `patchline up` has decided, for the supervisor to carry out."""

from __future__ import annotations

from pathlib import Path

from pipeline.local_services import services_folder
from pipeline.section import Section

_FILE, _FAILURE = "plan.json", "failure.json"


class Plan(Section):
    """Which servers to start, where, and which of the user's own to use instead."""

    prefect_port: int
    """The first port to try."""
    mlflow_port: int
    """The first port to try."""
    runs_at_once: int
    """Flow runs that the runner has at a time."""
    prefect_api_url: str | None
    """The user's own Prefect server; none to start one."""
    mlflow_url: str | None
    """The user's own MLflow server; none to start one."""
    store: str
    """What the MLflow server serves."""
    notes: tuple[str, ...]
    """What the user was told."""


class Failure(Section):
    """Why the supervisor gave up; the command that waits for it raises this error."""

    error: str
    """Name of the error's class."""
    message: str


def plan_file(folder: Path) -> Path:
    """Return the file of the plan."""
    return services_folder(folder) / _FILE


def failure_file(folder: Path) -> Path:
    """Return the file that says why starting failed."""
    return services_folder(folder) / _FAILURE
