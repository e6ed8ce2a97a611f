"""Closing what killed processes left open: real flows against a real Prefect server."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect import State
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import TaskRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Crashed, Pending, Running, Suspended

from patchline.flows import prefect_session
from patchline.flows.closing import abandoned_prefect_runs, close_runs
from patchline.flows.prefect_api import folder_labels
from patchline.flows.training.training_flow import training_flow
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking.tracking_store import client as mlflow_client
from tests.patience import patient, until

_PROGRAM = str(Path(__file__).with_name("like_training.py"))
_CLOSE = (
    "from patchline.flows.closing import close_runs\n"
    "print(*close_runs.close_abandoned_runs(), sep='\\n')\n"
)
pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture(autouse=True)
def _prefect(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test starts use the server, too."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)


@contextmanager
def _at_work(what: str = "works") -> Iterator[tuple[subprocess.Popen[str], UUID, str]]:
    """Run a flow in a process of its own; yield this, its flow run and its MLflow run."""
    process = subprocess.Popen(
        [sys.executable, "-P", _PROGRAM, what],
        env={**os.environ, "PREFECT_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        words = process.stdout.readline().split()
        assert words[:2] == ["at", "work"], words
        yield process, UUID(words[2]), words[3]
    finally:
        _kill(process)
        process.stdout.close()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(patient(60))


def _state(client: SyncPrefectClient, flow_run_id: UUID) -> tuple[str | None, str]:
    """Return name and message of a flow run's state."""
    state = client.read_flow_run(flow_run_id).state
    assert state
    return state.name, str(state.message)


def _status(run_id: str) -> str:
    return str(mlflow_client().get_run(run_id).info.status)


def _tasks(client: SyncPrefectClient, flow_run_id: UUID) -> list[TaskRun]:
    """Return the tasks of a run as soon as the server has heard of one."""
    wanted = FlowRunFilter.model_validate({"id": {"any_": [flow_run_id]}})
    until(lambda: client.read_task_runs(flow_run_filter=wanted), "no tasks")
    return client.read_task_runs(flow_run_filter=wanted)


def _live() -> list[str]:
    return [record.flow_run_id for record in live_runs.records(Path(".patchline"))]


def test_a_killed_run_and_its_sub_flow_are_closed_on_both_sides(client: SyncPrefectClient) -> None:
    """Nothing happens while it lives; after SIGKILL all is closed once, with the remedy."""
    with _at_work("sub-flow works") as (process, flow_run_id, run_id):
        in_parent = client.read_flow_run(flow_run_id).parent_task_run_id
        assert in_parent
        parent = client.read_task_run(in_parent).flow_run_id
        assert parent
        _tasks(client, flow_run_id)
        assert close_runs.close_abandoned_runs() == []
        assert (_state(client, flow_run_id)[0], _status(run_id)) == ("Running", "RUNNING")
        assert len(_live()) == 2
        _kill(process)
        said = "\n".join(close_runs.close_abandoned_runs())
    assert _status(run_id) == "KILLED"
    for each in (flow_run_id, parent):
        assert _state(client, each)[0] == "Crashed"
        assert {task.state_name for task in _tasks(client, each)} == {"Crashed"}
    store = mlflow_client()
    outputs = store.get_run(run_id).outputs
    assert outputs
    [model] = outputs.model_outputs
    assert str(store.get_logged_model(model.model_id).status) == "FAILED"
    assert f"resume it with `patchline run --resume {run_id}`" in said
    assert _live() == []
    assert close_runs.close_abandoned_runs() == []


@pytest.mark.slow
def test_a_run_without_a_runner_can_be_cancelled_in_prefect(client: SyncPrefectClient) -> None:
    """Cancel in the Prefect UI ends the process of `patchline run` and closes both sides."""
    with _at_work() as (process, flow_run_id, run_id):
        client.set_flow_run_state(flow_run_id, Cancelling(), force=True)
        close_runs.close_abandoned_runs()
        assert not psutil.pid_exists(process.pid)
        process.wait(patient(60))
        close_runs.close_abandoned_runs()
        assert (_state(client, flow_run_id)[0], _status(run_id)) == ("Cancelled", "KILLED")
    assert _live() == []


def test_a_killed_process_is_closed_by_its_own_folder_and_what_was_done_counts(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL after the MLflow run has FINISHED leaves a Completed flow run, not a crashed one.

    A runner that saw only the exit code may have called it crashed. The tag of a run that was
    killed before its record names its owner; while that one lives nothing happens.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with _at_work("lingers") as (process, done, run_id):
        assert process.stdout
        begun = UUID(process.stdout.readline().split()[2])
        for folder in (tmp_path, elsewhere):
            monkeypatch.chdir(folder)
            assert close_runs.close_abandoned_runs() == []
        _kill(process)
        client.set_flow_run_state(done, Crashed(), force=True)
        assert close_runs.close_abandoned_runs() == []
        assert (_state(client, begun)[0], _live()) == ("Running", [])
        monkeypatch.chdir(tmp_path)
        close_runs.close_abandoned_runs()
    assert (_state(client, done)[0], _status(run_id)) == ("Completed", "FINISHED")
    name, message = _state(client, begun)
    assert (name, "start it again" in message) == ("Crashed", True)
    assert _live() == []


@pytest.mark.slow
def test_many_may_close_at_once(client: SyncPrefectClient) -> None:
    """Two processes at the same time: the run is closed once, and nobody fails."""
    with _at_work() as (process, flow_run_id, run_id):
        _kill(process)
        command = [sys.executable, "-P", "-c", _CLOSE]
        closers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [closer.communicate(timeout=patient(120))[0] for closer in closers]
    assert [closer.returncode for closer in closers] == [0] * 2
    assert sum(words.count("Crashed") for words in said) == 1
    assert (_state(client, flow_run_id)[0], _status(run_id)) == ("Crashed", "KILLED")


# -- runs that never had a process of ours ------------------------------------------------------


def _served(client: SyncPrefectClient, state: State, **labels: str) -> UUID:
    """Create a run of a new deployment of this folder, or of one with other labels."""
    content = {
        "name": f"test-{time.time_ns()}",
        "flow_id": str(client.create_flow_from_name("Train and register")),
        "labels": folder_labels.of(Path()) | labels,
    }
    made = client.request("POST", "/deployments/", json=content).json()["id"]
    flow_run = client.create_flow_run_from_deployment(UUID(made), state=Pending())
    client.set_flow_run_state(flow_run.id, state, force=True)
    return flow_run.id


def test_served_runs_without_a_process_are_closed_after_a_while(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that was killed leaves them; one that is young, slow or suspended is left alone."""
    for seconds in ("_START_SECONDS", "_CANCEL_SECONDS"):
        monkeypatch.setattr(abandoned_prefect_runs, seconds, 0.2)
    begun: list[State[Any]] = [Pending(), Running()]
    spared: list[State[Any]] = [Cancelling(), Suspended(), Pending()]
    dead = [_served(client, state) for state in begun]
    cancelled, suspended, slow = (_served(client, state) for state in spared)
    _dead_record(suspended)  # an approval that waits for a person
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(slow)}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        time.sleep(0.3)
        close_runs.close_abandoned_runs()
    finally:
        process.kill()
        process.wait()
    for each in dead:
        name, message = _state(client, each)
        assert (name, "start it again" in message) == ("Crashed", True)
    states = [_state(client, each)[0] for each in (cancelled, suspended, slow)]
    assert states == ["Cancelled", "Suspended", "Pending"]
    assert _live() == []
    monkeypatch.setattr(abandoned_prefect_runs, "_START_SECONDS", 600.0)
    young = _served(client, Running())
    close_runs.close_abandoned_runs()
    assert _state(client, young)[0] == "Running"


def test_a_run_that_is_tried_again_is_left_alone(client: SyncPrefectClient) -> None:
    """The record of the killed attempt says nothing about the one that starts now."""
    flow_run_id = _served(client, Pending())
    _dead_record(flow_run_id, age=dt.timedelta(minutes=5))
    close_runs.close_abandoned_runs()
    assert _state(client, flow_run_id)[0] == "Pending"


def test_runs_of_others_are_left_alone(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another folder, or another workspace at this path, and those without an owner."""
    monkeypatch.setattr(abandoned_prefect_runs, "_START_SECONDS", 0.2)
    theirs = [
        client.create_flow_run(training_flow, state=Running()).id,
        _served(client, Running(), **{folder_labels.FOLDER: "/somewhere/else"}),
        _served(client, Running(), **{folder_labels.ID: "of a folder on another machine"}),
    ]
    time.sleep(0.3)
    close_runs.close_abandoned_runs()
    assert {_state(client, each)[0] for each in theirs} == {"Running"}


def test_a_record_that_this_server_does_not_know_is_kept() -> None:
    """Its run may be on another server; it is noted that this one was asked."""
    _dead_record(UUID(int=time.time_ns()))
    close_runs.close_abandoned_runs()
    [record] = live_runs.records(Path(".patchline"))
    assert record.sought


def test_without_any_server_only_mlflow_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Prefect server is started for it, and nothing fails."""
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setattr(prefect_session, "_server", None)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert close_runs.close_abandoned_runs() == []


def _dead_record(flow_run_id: UUID, age: dt.timedelta = dt.timedelta(0)) -> None:
    """Write the record of a process that is gone."""
    lock = Path(".patchline").resolve() / live_runs.FOLDER / f"{flow_run_id}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    record = live_runs.LiveRun(
        flow_run_id=str(flow_run_id),
        what="training",
        pid=2**22 + 1,
        process_started=0.0,
        host=os.uname().nodename,
        lock=file_locks.identity(lock),
        started=(dt.datetime.now(dt.UTC) - age).isoformat(),
    )
    record.at(lock).write()
