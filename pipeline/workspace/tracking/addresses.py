"""Addresses of pages in the MLflow UI, in its layout for model training.

A path is an address relative to the UI, so a link on one of its own pages works on any server.
"""

from __future__ import annotations

from urllib.parse import quote

from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import use_store

_LAYOUT = "workflowType=machine_learning"
"""Without it the UI may open in its layout for language models, which shows no runs."""
_UI = "http://127.0.0.1:5000"
"""Where `mlflow ui` shows a store that is a file."""


def server() -> str:
    """Return the address of the MLflow UI; for a store that is a file, that of `mlflow ui`."""
    uri = use_store()
    return without_credentials(uri).rstrip("/") if uri.startswith("http") else _UI


def run_page(run: TrackedRun) -> str:
    """Return the page of a run."""
    return f"{server()}/{run_path(run)}"


def report_path(run: TrackedRun) -> str:
    """Return the report of a run, shown among its artifacts, inside the MLflow UI."""
    return f"{_run(run)}/artifacts/report/report.html?{_LAYOUT}"


def artifact_path(run: TrackedRun, name: str) -> str:
    """Return a file of a run, shown among its artifacts, inside the MLflow UI."""
    return f"{_run(run)}/artifacts/{name}?{_LAYOUT}"


def run_path(run: TrackedRun) -> str:
    """Return the page of a run inside the MLflow UI."""
    return f"{_run(run)}?{_LAYOUT}"


def model_path(name: str, version: str = "") -> str:
    """Return the page of a registered model, or of one of its versions, inside the MLflow UI."""
    model = f"#/models/{quote(name, safe='')}"
    return f"{model}/versions/{version}?{_LAYOUT}" if version else f"{model}?{_LAYOUT}"


def runs_path(experiment_id: str, view: str = "", *, charts: bool = False) -> str:
    """Return the table of an experiment's runs, or their charts, as a saved view shows them."""
    chosen = f"&viewStateShareKey={view}" if view else ""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?{_LAYOUT}{chosen}{mode}"


def _run(run: TrackedRun) -> str:
    return f"#/experiments/{run.experiment_id}/runs/{run.run_id}"
