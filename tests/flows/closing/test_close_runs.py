"""Closing what killed processes left open: real flows against a real Prefect server."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect import State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import TaskRun
from prefect.states import Cancelling, Crashed, Pending, Running, Suspended

from patchline.flows import prefect_session
from patchline.flows.closing import abandoned_prefect_runs, close_runs
from patchline.flows.schedules import folder_labels
from patchline.flows.training.training_flow import training_flow
from patchline.pipeline.files import file_locks
from patchline.pipeline.run_memory import live_runs
from patchline.pipeline.tracking.tracking_store import client as mlflow_client
from tests.conftest import PREFECT_DATABASE
from tests.patience import patient

_PROGRAM = Path(__file__).with_name("like_training.py")
pytestmark = pytest.mark.usefixtures("own_store")
_LONG_AGO = dt.timedelta(minutes=5)


@pytest.fixture(scope="module", autouse=True)
def _prefect(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path) -> Iterator[None]:
    """Give all tests of this file one server, which knows no run of any other file."""
    database = shutil.copy(empty_prefect, tmp_path_factory.mktemp("closing") / "prefect.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PREFECT_DATABASE, f"sqlite+aiosqlite:///{database}")
        with prefect_session.server(), prefect_session.ready():
            yield


@pytest.fixture
def prefect() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


@dataclass(frozen=True)
class AtWork:
    """A flow in a process of its own, in the middle of its work."""

    process: subprocess.Popen[str]
    flow_run_id: UUID
    run_id: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(patient(60))

    def status(self) -> str:
        """The status of its MLflow run."""
        return str(mlflow_client().get_run(self.run_id).info.status)

    def models(self) -> set[str]:
        """The statuses of its models."""
        store = mlflow_client()
        outputs = store.get_run(self.run_id).outputs
        found = outputs.model_outputs if outputs else ()
        return {str(store.get_logged_model(each.model_id).status) for each in found}


@contextmanager
def _at_work(what: str = "works", folder: Path | None = None) -> Iterator[AtWork]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM), what],
        cwd=folder,
        env={**os.environ, "PREFECT_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        words = process.stdout.readline().split()
        assert words[:2] == ["at", "work"], words
        yield AtWork(process, UUID(words[2]), words[3])
    finally:
        process.kill()
        process.wait(patient(60))
        process.stdout.close()


def _state(prefect: SyncPrefectClient, flow_run_id: UUID) -> State:
    state = prefect.read_flow_run(flow_run_id).state
    assert state
    return state


def _tasks(prefect: SyncPrefectClient, flow_run_id: UUID, count: int) -> list[TaskRun]:
    """Return the tasks of a run as soon as the server has heard of them."""
    wanted = FlowRunFilter.model_validate({"id": {"any_": [flow_run_id]}})
    deadline = time.monotonic() + patient(60)
    while len(found := prefect.read_task_runs(flow_run_filter=wanted)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def _live() -> list[str]:
    return [record.flow_run_id for record in live_runs.records(Path(".patchline"))]


def test_a_killed_run_is_closed_on_both_sides(prefect: SyncPrefectClient) -> None:
    """Nothing happens while it lives; after SIGKILL both sides are closed once, with the remedy."""
    with _at_work() as run:
        _tasks(prefect, run.flow_run_id, 1)
        assert close_runs.close_abandoned_runs() == []
        assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Running", "RUNNING")
        run.kill()
        said = close_runs.close_abandoned_runs()
    assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Crashed", "KILLED")
    assert run.models() == {"FAILED"}
    assert {task.state_name for task in _tasks(prefect, run.flow_run_id, 1)} == {"Crashed"}
    [in_mlflow, in_prefect] = said
    assert run.run_id in in_mlflow
    assert f"resume it with `patchline run --resume {run.run_id}`" in in_prefect
    assert _live() == []
    assert close_runs.close_abandoned_runs() == []


@pytest.mark.slow
def test_a_run_without_a_runner_can_be_cancelled_in_prefect(prefect: SyncPrefectClient) -> None:
    """Cancel in the Prefect UI ends the process of `patchline run` and closes both sides."""
    with _at_work() as run:
        prefect.set_flow_run_state(run.flow_run_id, Cancelling(), force=True)
        close_runs.close_abandoned_runs()
        assert not psutil.pid_exists(run.process.pid)
        run.process.wait(patient(60))
        close_runs.close_abandoned_runs()
        assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Cancelled", "KILLED")
    assert _live() == []


def test_work_that_was_done_counts_as_done(prefect: SyncPrefectClient) -> None:
    """SIGKILL after the MLflow run has FINISHED leaves a Completed flow run, not a crashed one."""
    with _at_work("lingers") as run:
        assert close_runs.close_abandoned_runs() == []
        run.kill()
        close_runs.close_abandoned_runs()
    assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Completed", "FINISHED")


@pytest.mark.slow
def test_done_work_that_the_runner_called_crashed_is_completed(prefect: SyncPrefectClient) -> None:
    """The runner sees only the exit code; MLflow knows that the work was done."""
    with _at_work("lingers") as run:
        run.kill()
        prefect.set_flow_run_state(run.flow_run_id, Crashed(), force=True)
        close_runs.close_abandoned_runs()
    assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Completed", "FINISHED")
    assert _live() == []


@pytest.mark.slow
def test_a_sub_flow_is_closed_with_its_parent(prefect: SyncPrefectClient) -> None:
    """Both flow runs of a killed process are Crashed, with the task that is the sub-flow."""
    with _at_work("sub-flow works") as run:
        [child] = [each for each in prefect.read_flow_runs() if each.id == run.flow_run_id]
        assert child.parent_task_run_id
        task = prefect.read_task_run(child.parent_task_run_id)
        assert task.flow_run_id
        assert len(_live()) == 2
        run.kill()
        close_runs.close_abandoned_runs()
    assert _state(prefect, run.flow_run_id).name == "Crashed"
    assert _state(prefect, task.flow_run_id).name == "Crashed"
    assert {each.state_name for each in _tasks(prefect, task.flow_run_id, 1)} == {"Crashed"}
    assert _live() == []


def test_a_run_that_was_killed_before_its_record_is_closed_at_once(
    prefect: SyncPrefectClient,
) -> None:
    """Its tag names its owner from the first moment; while that one lives nothing happens."""
    with _at_work("begins") as run:
        assert close_runs.close_abandoned_runs() == []
        assert (_state(prefect, run.flow_run_id).name, _live()) == ("Running", [])
        run.kill()
        close_runs.close_abandoned_runs()
    assert _state(prefect, run.flow_run_id).name == "Crashed"
    assert "start it again" in str(_state(prefect, run.flow_run_id).message)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_run_of_another_folder_on_the_same_server_is_left_to_that_folder(
    prefect: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead or alive, with or without a record: its own folder closes it, at its next command."""
    other = tmp_path / "other"
    other.mkdir()
    with _at_work("begins", folder=other) as run:
        run.kill()
        time.sleep(0.3)
        assert close_runs.close_abandoned_runs() == []
        assert _state(prefect, run.flow_run_id).name == "Running"
        monkeypatch.chdir(other)
        close_runs.close_abandoned_runs()
        assert _state(prefect, run.flow_run_id).name == "Crashed"


@pytest.mark.slow
def test_many_may_close_at_once(prefect: SyncPrefectClient) -> None:
    """Four processes at the same time: the run is closed once, and nobody fails."""
    with _at_work() as run:
        run.kill()
        command = [sys.executable, "-P", "-c", _CLOSE]
        closers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said = [closer.communicate(timeout=patient(120))[0] for closer in closers]
    assert [closer.returncode for closer in closers] == [0] * 4
    assert sum(words.count("Crashed") for words in said) == 1
    assert (_state(prefect, run.flow_run_id).name, run.status()) == ("Crashed", "KILLED")


_CLOSE = (
    "from patchline.flows.closing import close_runs\n"
    "print(*close_runs.close_abandoned_runs(), sep='\\n')\n"
)


# -- runs that never had a process of ours ------------------------------------------------------


_OTHERS = {
    "path": {folder_labels.FOLDER: "/somewhere/else"},
    "workspace": {folder_labels.ID: "of a folder on another machine"},
}


@pytest.fixture
def deployed(prefect: SyncPrefectClient) -> Iterator[UUID]:
    """Return a deployment of this folder."""
    flow_id = prefect.create_flow_from_name("Train and register")
    request = DeploymentCreate(
        name=f"test-{time.time_ns()}",
        flow_id=flow_id,
        labels=folder_labels.of(Path()),
    )
    answer = prefect.request("POST", "/deployments/", json=_body(request))
    deployment_id = UUID(answer.json()["id"])
    yield deployment_id
    prefect.delete_deployment(deployment_id)


def _body(request: DeploymentCreate) -> dict[str, Any]:
    return request.model_dump(mode="json", exclude_unset=True)


def _served(prefect: SyncPrefectClient, deployment: UUID, state: State) -> UUID:
    """Create a run of a deployment in a state."""
    flow_run = prefect.create_flow_run_from_deployment(deployment, state=Pending())
    prefect.set_flow_run_state(flow_run.id, state, force=True)
    return flow_run.id


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fifth of a second count as long."""
    for seconds in ("_START_SECONDS", "_CANCEL_SECONDS"):
        monkeypatch.setattr(abandoned_prefect_runs, seconds, 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("state", [Pending(), Running()], ids=["Pending", "Running"])
def test_a_served_run_without_a_process_is_closed(
    prefect: SyncPrefectClient, deployed: UUID, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner killed before it started the process leaves a run that is closed after a while."""
    old = _served(prefect, deployed, state)
    time.sleep(0.3)
    close_runs.close_abandoned_runs()
    assert _state(prefect, old).name == "Crashed"
    assert "start it again" in str(_state(prefect, old).message)
    monkeypatch.setattr(abandoned_prefect_runs, "_START_SECONDS", 600.0)
    young = _served(prefect, deployed, state)
    close_runs.close_abandoned_runs()
    assert _state(prefect, young).name == state.name


@pytest.mark.usefixtures("impatient")
def test_a_cancelled_run_without_a_process_is_cancelled(
    prefect: SyncPrefectClient, deployed: UUID
) -> None:
    """Cancelling does not stay when the runner is gone."""
    flow_run_id = _served(prefect, deployed, Cancelling())
    time.sleep(0.3)
    close_runs.close_abandoned_runs()
    assert _state(prefect, flow_run_id).name == "Cancelled"


@pytest.mark.usefixtures("impatient")
def test_a_served_run_that_is_only_slow_is_left_alone(
    prefect: SyncPrefectClient, deployed: UUID
) -> None:
    """Its process is there, though it has no record yet."""
    flow_run_id = _served(prefect, deployed, Pending())
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(flow_run_id)}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        close_runs.close_abandoned_runs()
        assert _state(prefect, flow_run_id).name == "Pending"
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("impatient")
def test_a_suspended_run_waits_without_a_process(
    prefect: SyncPrefectClient, deployed: UUID
) -> None:
    """An approval that waits for a person is not dead, even if its process was killed."""
    flow_run_id = _served(prefect, deployed, Suspended())
    _dead_record(flow_run_id)
    close_runs.close_abandoned_runs()
    assert _state(prefect, flow_run_id).name == "Suspended"
    assert _live() == []


def test_a_run_that_is_tried_again_is_left_alone(
    prefect: SyncPrefectClient, deployed: UUID
) -> None:
    """The record of the killed attempt says nothing about the one that starts now."""
    flow_run_id = _served(prefect, deployed, Pending())
    _dead_record(flow_run_id, age=_LONG_AGO)
    close_runs.close_abandoned_runs()
    assert _state(prefect, flow_run_id).name == "Pending"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("other", ["path", "workspace"])
def test_runs_of_others_are_left_alone(prefect: SyncPrefectClient, other: str) -> None:
    """Those of another folder, or another workspace at this path, and those without an owner."""
    flow_id = prefect.create_flow_from_name("Train and register")
    ownerless = prefect.create_flow_run(training_flow, state=Running()).id
    request = DeploymentCreate(
        name=f"elsewhere-{time.time_ns()}",
        flow_id=flow_id,
        labels={**folder_labels.of(Path()), **_OTHERS[other]},
    )
    answer = prefect.request("POST", "/deployments/", json=_body(request))
    elsewhere = _served(prefect, UUID(answer.json()["id"]), Running())
    time.sleep(0.3)
    close_runs.close_abandoned_runs()
    assert {_state(prefect, each).name for each in (elsewhere, ownerless)} == {"Running"}


def test_a_record_that_this_server_does_not_know_is_kept(prefect: SyncPrefectClient) -> None:
    """Its run may be on another server; it is noted that this one was asked."""
    flow_run_id = UUID(int=time.time_ns())
    with contextlib.suppress(Exception):
        assert not prefect.read_flow_run(flow_run_id)
    _dead_record(flow_run_id)
    close_runs.close_abandoned_runs()
    [record] = live_runs.records(Path(".patchline"))
    assert record.sought


def test_without_any_server_only_mlflow_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Prefect server is started for it, and nothing fails."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(prefect_session, "_server", None)
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert close_runs.close_abandoned_runs() == []


def _dead_record(flow_run_id: UUID, age: dt.timedelta = dt.timedelta(0)) -> None:
    """Write the record of a process that is gone."""
    began = dt.datetime.now(dt.UTC) - age
    folder = Path(".patchline").resolve() / live_runs.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{flow_run_id}.lock").touch()
    record = live_runs.LiveRun(
        flow_run_id=str(flow_run_id),
        what="training",
        pid=2**22 + 1,
        process_started=0.0,
        host=os.uname().nodename,
        lock=file_locks.identity(folder / f"{flow_run_id}.lock"),
        started=began.isoformat(),
    )
    record.at(folder / f"{flow_run_id}.lock").write()
