"""Runs that were due while nobody could start them, and places that were not given back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running

from patchline.flows.prefect_api.failures import build_failed_state
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import ServerAwayError
from tests.flows.schedules.schedule_parts import (
    PREDICTING,
    every_minute,
    let_pass,
    only_one,
    runs_of,
)
from tests.made.servers import Command

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_after_a_long_sleep_one_run_is_left_of_those_that_were_missed(
    client: SyncPrefectClient,
) -> None:
    """Ten runs are due at once: the newest stays, the others are cancelled and say why.

    What is yet to come is not touched, and a second look changes nothing.
    """
    deployment_id = every_minute()
    let_pass(client, deployment_id, minutes=10)
    assert len(runs_of(client, deployment_id)) >= 12
    for _ in range(2):
        deployments.drop_missed()
        runs = runs_of(client, deployment_id)
        now = dt.datetime.now(dt.UTC)
        due = [run for run in runs if run.expected_start_time and run.expected_start_time < now]
        assert [run.state_name for run in due] == ["Cancelled"] * (len(due) - 1) + ["Scheduled"]
        assert {run.state_name for run in runs[len(due) :]} == {"Scheduled"}
    assert "Missed: due at" in str(due[0].state and due[0].state.message)


def test_a_missed_run_that_was_started_already_stands_for_all_of_them(
    client: SyncPrefectClient,
) -> None:
    """When the runner was faster than the look at what was missed, no second run is started."""
    deployment_id = every_minute()
    let_pass(client, deployment_id, minutes=10, ahead=0)
    oldest = runs_of(client, deployment_id)[0]
    client.set_flow_run_state(oldest.id, Pending())
    deployments.drop_missed()
    states = [run.state_name for run in runs_of(client, deployment_id)]
    assert states == ["Pending"] + ["Cancelled"] * (len(states) - 1)
    client.set_flow_run_state(oldest.id, Running())
    client.set_flow_run_state(oldest.id, Completed())
    let_pass(client, deployment_id, minutes=10, ahead=0)  # the scheduler looks again
    deployments.drop_missed()
    names = {run.state_name for run in runs_of(client, deployment_id)}
    assert names == {"Completed", "Cancelled"}


def test_a_run_that_is_due_during_another_is_cancelled(
    run_here: Command, client: SyncPrefectClient
) -> None:
    """One run at a time; what comes meanwhile is not queued, and `run-now` says so."""
    deployment_id = every_minute()
    first, second = (deployments.start(deployment_id) for _ in range(2))
    client.set_flow_run_state(first, Pending())
    client.set_flow_run_state(second, Pending())
    assert client.read_flow_run(second).state_name == "Cancelled"
    assert str(first) in run_here.refusal("schedule run-now often", code=1)
    client.set_flow_run_state(first, Running())
    client.set_flow_run_state(first, Completed())
    third = deployments.start(deployment_id)
    client.set_flow_run_state(third, Pending())
    assert client.read_flow_run(third).state_name == "Pending"


def test_a_place_that_a_killed_server_forgot_is_given_back(client: SyncPrefectClient) -> None:
    """A count that no run stands behind would keep every later run from starting."""
    deployment_id = every_minute()
    limit = only_one().global_concurrency_limit
    assert limit
    client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=1))
    blocked = deployments.start(deployment_id)
    client.set_flow_run_state(blocked, Pending())
    assert client.read_flow_run(blocked).state_name == "Cancelled"
    deployments.drop_missed()
    free = deployments.start(deployment_id)
    client.set_flow_run_state(free, Pending())
    assert client.read_flow_run(free).state_name == "Pending"
    deployments.drop_missed()  # a run stands behind this one
    other = deployments.start(deployment_id)
    client.set_flow_run_state(other, Pending())
    assert client.read_flow_run(other).state_name == "Cancelled"


def test_a_paused_schedule_starts_nothing_that_was_due(client: SyncPrefectClient) -> None:
    """What waits when it is paused is cancelled, and a change cancels what has old settings."""
    deployment_id = every_minute()
    let_pass(client, deployment_id, minutes=3)
    deployments.set_paused(only_one(), paused=True)
    assert {run.state_name for run in runs_of(client, deployment_id)} == {"Cancelled"}
    deployments.set_paused(only_one(), paused=False)
    let_pass(client, deployment_id, minutes=2)
    every_minute(parameters={**PREDICTING, "top_k": 2})
    assert {run.state_name for run in runs_of(client, deployment_id)} == {"Cancelled"}
    let_pass(client, deployment_id, minutes=0)
    coming = [run for run in runs_of(client, deployment_id) if run.state_name == "Scheduled"]
    assert {run.parameters["top_k"] for run in coming} == {2}


Kill = Callable[..., tuple[UUID, UUID]]


@pytest.fixture
def kill(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Return what makes a schedule, and a run of it that was killed and may be resumed at once."""
    monkeypatch.setattr(deployments, "_FIRST_PAUSE_SECONDS", 0.0)

    def killed(name: str = "killed") -> tuple[UUID, UUID]:
        schedule = every_minute(name)
        flow_run_id = deployments.start(schedule)
        client.set_flow_run_state(flow_run_id, Running(), force=True)
        client.set_flow_run_state(flow_run_id, Crashed(), force=True)
        return schedule, flow_run_id

    return killed


def test_a_killed_run_is_resumed_but_not_for_ever(client: SyncPrefectClient, kill: Kill) -> None:
    """The same run, three times; one that failed by itself would fail again and is left alone.

    When MLflow is started again in the moment that a run begins, the run is not lost.
    """
    schedule, flow_run_id = kill()
    for _ in range(deployments.MAX_FAILURES - 1):
        deployments.continue_interrupted()
        assert client.read_flow_run(flow_run_id).state_name == "Resuming"
        client.set_flow_run_state(flow_run_id, Crashed(), force=True)
    deployments.continue_interrupted()
    assert client.read_flow_run(flow_run_id).state_name == "Crashed"
    wrong = deployments.start(schedule)
    client.set_flow_run_state(wrong, Failed(), force=True)
    deployments.continue_interrupted()
    assert client.read_flow_run(wrong).state_name == "Failed"
    alone = deployments.start(schedule)
    away = build_failed_state(
        ServerAwayError("The MLflow store cannot be used (it refuses connections).")
    )
    client.set_flow_run_state(alone, away.model_copy(update={"data": None}), force=True)
    assert client.read_flow_run(alone).state_name == "Server unavailable"
    deployments.continue_interrupted()
    state = client.read_flow_run(alone).state
    assert state
    assert (state.name, "it refuses connections" in str(state.message)) == ("Resuming", True)


def test_a_killed_run_gives_way(client: SyncPrefectClient, kill: Kill) -> None:
    """To a later run that had its turn, not to one that was cancelled; and to a person's pause."""
    killed = {name: kill(name) for name in ("cancelled", "later", "paused")}
    ends: tuple[State, ...] = (Cancelled(), Running())
    for name, state in zip(killed, ends, strict=False):
        later = deployments.start(killed[name][0])
        client.set_flow_run_state(later, state, force=True)
    deployments.set_paused(deployments.deployments()[2], paused=True)
    deployments.continue_interrupted()
    states = [client.read_flow_run(run).state_name for _, run in killed.values()]
    assert states == ["Resuming", "Crashed", "Crashed"]
