"""The conditions that must hold after a process was killed: a list of the violated ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import kill_targets
from pipeline.files.file_locks import is_held
from pipeline.registry import history
from pipeline.registry.registered_models import FINGERPRINT_TAG
from pipeline.run_memory import live_runs
from pipeline.tracking import liveness, tracked_run
from pipeline.tracking.liveness import Liveness
from pipeline.tracking.tracking_store import client
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_FITTING = {
    "FINISHED": {"Completed"},
    "FAILED": {"Failed", "Server unavailable"},
    "KILLED": {"Crashed", "Cancelled"},
    "RUNNING": {"Running", "Cancelling"},
}
_OPEN = ("RUNNING", "PENDING", "CANCELLING")
_ARTIFACTS = {"model.onnx", "model.safetensors", "model.json"}
_PERMANENT = ("supervisor.lock", "lifeline", "line")


def violations(folder: Path, done: list[str]) -> list[str]:
    """Return what is wrong in a folder.

    Args:
        folder: the working directory, with the servers up and connected.
        done: MLflow runs that were seen finished.
    """
    try:
        return [
            *_prefect_and_mlflow(folder),
            *_half_registered(),
            *_lost(done),
            *_orphans(folder),
            *_held_locks(folder),
        ]
    except Exception as error:  # noqa: BLE001 - a server that has not restarted yet counts, too
        return [f"could not look: {type(error).__name__}: {str(error)[:200]}"]


def runs_of(store: MlflowClient) -> list[Run]:
    """Return all MLflow runs."""
    experiments = [each.experiment_id for each in store.search_experiments()]
    return list(store.search_runs(experiments, max_results=1000))


def flow_runs_of(prefect: SyncPrefectClient) -> list[FlowRun]:
    """Return all flow runs that are not scheduled for the future."""
    found: list[FlowRun] = []
    while page := prefect.read_flow_runs(limit=200, offset=len(found)):
        found += page
    return [each for each in found if each.state_type and each.state_type.value != "SCHEDULED"]


def _prefect_and_mlflow(folder: Path) -> Iterator[str]:
    from prefect.client.orchestration import get_client

    records = {each.flow_run_id: each for each in live_runs.records(folder / WORKSPACE)}
    alive = {each for each, record in records.items() if record.is_alive}
    for dead in set(records) - alive:
        yield f"the record of flow run {dead} is that of a dead process"
    with get_client(sync_client=True) as prefect:
        states = {str(each.id): each for each in flow_runs_of(prefect)}
    for flow_run_id, flow_run in states.items():
        is_open = flow_run.state_type and flow_run.state_type.value in _OPEN
        if is_open and flow_run_id not in alive and not _process_of(flow_run_id):
            yield f"flow run {flow_run.name} is {flow_run.state_name}, and nothing carries it out"
    for run in runs_of(client()):
        owned = liveness.of_run(run) is Liveness.ALIVE
        if run.info.status == "RUNNING" and not owned:
            yield f"MLflow's run {run.info.run_id} is RUNNING without an owner"
        flow_run_id = run.data.tags.get(tracked_run.FLOW_RUN_TAG, "")
        state = states[flow_run_id].state_name if flow_run_id in states else None
        if flow_run_id not in alive and state not in _FITTING[run.info.status]:
            yield f"run {run.info.run_id} is {run.info.status} in MLflow and {state} in Prefect"


def _half_registered() -> Iterator[str]:
    store = client()
    over = {each.info.run_id for each in runs_of(store) if each.info.status != "RUNNING"}
    experiments = [each.experiment_id for each in store.search_experiments()]
    for model in store.search_logged_models(experiments, max_results=500):
        if str(model.status) == "PENDING" and model.source_run_id in over:
            yield f"the model {model.model_id} is PENDING, but its run is over"
    for registered in store.search_registered_models():
        yield from _half_versions(store, registered, over)


def _half_versions(
    store: MlflowClient, registered: RegisteredModel, over: set[str]
) -> Iterator[str]:
    versions = store.search_model_versions(f"name = '{registered.name}'")
    there = {str(version.version) for version in versions}
    for version in versions:
        if version.run_id in over and FINGERPRINT_TAG not in version.tags:
            yield f"version {version.version} of {registered.name} lacks its tags"
    for alias, number in registered.aliases.items():
        if str(number) not in there:
            yield f"the alias {alias} of {registered.name} names version {number}, gone"
    if over >= {version.run_id for version in versions}:
        for entry in history.read(store, registered.name):
            if entry.state != "done":
                yield f"the history of {registered.name} has an unfinished entry"


def _lost(done: list[str]) -> Iterator[str]:
    store = client()
    for run_id in done:
        run = store.get_run(run_id)
        if run.info.status != "FINISHED" or "test/accuracy" not in run.data.metrics:
            yield f"run {run_id} was done, and is {run.info.status} with fewer metrics now"
        versions = store.search_model_versions(f"run_id = '{run_id}'")
        if not versions:
            yield f"run {run_id} was done, and has no version any more"
        for version in versions:
            source = str(version.source).removeprefix("models:/")
            files = set(_files(store, source))
            if not files >= _ARTIFACTS:
                yield f"version {version.version} of run {run_id} lacks {_ARTIFACTS - files}"


def _files(store: MlflowClient, model_id: str, folder: str | None = None) -> Iterator[str]:
    for each in store.list_logged_model_artifacts(model_id, folder):
        if each.is_dir:
            yield from _files(store, model_id, each.path)
        else:
            yield Path(each.path).name


def _orphans(folder: Path) -> Iterator[str]:
    # Last, so that a process that has just been started does not count as an orphan.
    suspects = kill_targets.all_of(folder)
    rightful = kill_targets.rightful(folder)
    for process in suspects:
        with contextlib.suppress(psutil.Error):
            if process.pid not in rightful and process.is_running():
                words = " ".join(process.cmdline())[:160]
                yield f"process {process.pid} ({words}) is an orphan"


def _held_locks(folder: Path) -> Iterator[str]:
    records = live_runs.records(folder / WORKSPACE)
    if any(record.is_alive for record in records):
        return
    for file in (folder / WORKSPACE).rglob("*.lock"):
        if file.name in _PERMANENT or "services" in file.parts:
            continue
        if is_held(file, wait_seconds=2.0):
            yield f"{file.relative_to(folder)} is held while no run is active"


def _process_of(flow_run_id: str) -> bool:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run_id:
                return process.pid != os.getpid()
    return False
