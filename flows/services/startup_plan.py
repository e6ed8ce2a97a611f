"""The plan that `patchline up` hands to the supervisor, and the failure that it hands back.

`patchline up` writes the plan to a file; the supervisor deletes it once it is read.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.local_services import POOL, services_folder
from patchline.plugin_api import ToolService


class PlannedService(FrozenModel):
    """A service of a tool, and what it is started with."""

    service: ToolService
    argument: str
    """The value of its flag."""
    port: int
    """The first port to try."""


class StartupPlan(FrozenModel):
    """Which servers to start, on which ports, and which servers of the user to use instead."""

    prefect_port: int
    """The first port to try."""
    mlflow_port: int
    """The first port to try."""
    max_concurrent_runs: int
    """Flow runs that the runner executes at the same time."""
    pool: str = POOL
    """The work pool whose runs the runner executes."""
    prefect_api_url: str | None
    """The user's own Prefect server; none to start one."""
    mlflow_url: str | None
    """The user's own MLflow server; none to start one."""
    store: str
    """The store that the MLflow server serves."""
    mlflow_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the MLflow server for a team's stores."""
    prefect_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the Prefect server for a team's database."""
    services: tuple[PlannedService, ...] = ()
    """The services of tools to run."""
    notes: tuple[str, ...]
    """What to print for the user."""


class Failure(FrozenModel):
    """Why the supervisor gave up; `patchline up` raises this error."""

    error: str
    """Name of the error's class."""
    message: str


def plan_file(folder: Path) -> Path:
    """Return the file with the plan."""
    return services_folder(folder) / "plan.json"


def failure_file(folder: Path) -> Path:
    """Return the file with the failure."""
    return services_folder(folder) / "failure.json"
