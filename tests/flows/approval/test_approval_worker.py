"""Approvals with real processes: a server, a worker, and what is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client

from patchline.flows.approval import approval_flow, requests
from patchline.flows.approval.requests import ApprovalRequest
from patchline.flows.prefect_api.failures import was_interrupted
from patchline.flows.schedules import deployments, work_pools
from patchline.pipeline.registry.registered_models import ModelReference
from tests.flows.approval.approval_parts import (
    YES,
    champion,
    open_request,
    parting_words,
    versions,
)
from tests.flows.commands.photo_stores import entered_store
from tests.patience import patient, until
from tests.pipeline.registry.made_versions import QUICK

pytestmark = pytest.mark.slow  # a server, a worker, and a process for each step


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, prefect_server: str
) -> Iterator[Path]:
    """Return a folder with a store, while a server and the worker of its pool run."""
    folder = tmp_path_factory.mktemp("approval_worker")
    with (
        entered_store(folder, empty_store),  # the name of the pool comes from the folder
        pytest.MonkeyPatch.context() as patch,
        (folder / "worker.log").open("wb") as log,
    ):
        patch.setenv("PREFECT_API_URL", prefect_server)
        pool = (*("--pool", work_pools.of_folder()), *("--type", "process"))
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "prefect", "worker", "start", *pool],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PREFECT_WORKER_QUERY_SECONDS": "1"},
        )
        try:
            until(deployments.runner_is_up, "no worker", seconds=180)
            yield folder
            parting_words()
        finally:
            worker.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(patient(20))
            worker.kill()
            worker.wait()


def _suspended(reference: ModelReference) -> ApprovalRequest:
    """Request approval through the worker; return the request once it waits without a process."""
    assert "Approval requested" in str(approval_flow.request_approval(reference, QUICK))
    asked = open_request(reference)
    until(lambda: requests.refresh(asked).waits, "no question", seconds=180, pause=1)
    until(lambda: not _flow_processes(asked), "the process stays", pause=1)
    return requests.refresh(asked)


def _flow_processes(asked: ApprovalRequest) -> list[psutil.Process]:
    """Return the processes that carry out a flow run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == str(asked.flow_run_id):
                found.append(process)
    return found


def test_sigkill_right_after_the_answer_loses_nothing(here: Path) -> None:
    """The worker reports the kill, the keeper retries the flow run, and the answer counts."""
    _, better = versions("violets", here, range(60), range(10))
    asked = _suspended(better)
    assert requests.submit_answer(asked, YES)
    until(lambda: _flow_processes(asked), "no process carries it out")
    for process in _flow_processes(asked):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    until(lambda: requests.refresh(asked).failed, "no crash", seconds=180, pause=1)
    assert champion("violets") == "1"

    def promoted() -> bool:
        approval_flow.expire_overdue()
        return requests.refresh(asked).state == "Promoted"

    until(promoted, "no promotion", seconds=180, pause=1)
    assert champion("violets") == "2"
    with get_client(sync_client=True) as prefect:
        assert deployments.count_failures(prefect, asked.flow_run_id, was_interrupted) == 1
