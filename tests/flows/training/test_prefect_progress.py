"""The progress artifact: it never disturbs the work that it shows."""

from __future__ import annotations

import time

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from patchline.flows.progress import prefect_progress
from patchline.flows.progress.prefect_progress import ProgressArtifact
from tests.patience import patient


def test_a_server_that_is_away_costs_nothing_but_the_picture() -> None:
    """Without a server calls return, the thread gives up, and later calls start no other one."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        artifact = ProgressArtifact(interval=0.01)
        while not artifact.given_up:
            artifact.show(50, "training")
            time.sleep(0.01)
        artifact.show(100, "training")
        assert artifact.wait(patient(120))
        artifact.show(100, "training")
        assert artifact.wait(0)


@task
def works() -> None:
    """Show two figures, as a running task would."""
    artifact = prefect_progress.artifact()
    assert artifact
    artifact.show(50, "half")
    artifact.show(100, "all")
    assert artifact.wait(patient(60))


@flow
def working() -> tuple[str, str]:
    """Work, and return which flow run and task run it was."""
    state = works(return_state=True)
    return str(flow_run.id), str(state.state_details.task_run_id)


@pytest.mark.usefixtures("prefect_server")
def test_the_artifact_belongs_to_the_task_that_shows_it(client: SyncPrefectClient) -> None:
    """One artifact a task, with its last figures, on the pages of the task and of its flow run."""
    flow_run_id, task_run_id = working()
    artifacts = client.read_artifacts()  # of other tests, too
    [found] = [each for each in artifacts if str(each.flow_run_id) == flow_run_id]
    assert (str(found.flow_run_id), str(found.task_run_id)) == (flow_run_id, task_run_id)
    assert (found.key, found.type, found.data, found.description) == (
        "progress", "progress", 100.0, "all",
    )  # fmt: skip
