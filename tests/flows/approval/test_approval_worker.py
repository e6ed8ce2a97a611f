"""Approvals with real processes: a server, a worker, the command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client

from patchline.flows.approval import approval_form, expiry, opening, requests
from patchline.flows.approval.requests import ApprovalRequest
from patchline.flows.failures import was_interrupted
from patchline.flows.schedules import deployments, retries, work_pools
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.run_memory import live_runs
from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import patchline
from tests.flows.approval.approval_parts import (
    YES,
    asked_about,
    carry_on,
    champion,
    parting_words,
    versions,
)
from tests.flows.lasting_server import lasting_server
from tests.patience import patient
from tests.pipeline.registry.made_versions import QUICK

pytestmark = pytest.mark.slow  # a server, a worker, and a process for each step

_SECONDS = patient(180.0)


@contextlib.contextmanager
def _server(folder: Path, empty_prefect: Path) -> Iterator[str]:
    with lasting_server(folder, empty_prefect) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", url)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield url
        parting_words()


@contextlib.contextmanager
def _worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of the pool, as `patchline up` does."""
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool",
             work_pools.of_folder(), "--type", "process"],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PREFECT_WORKER_QUERY_SECONDS": "1"},
        )  # fmt: skip
    try:
        _wait_for(deployments.runner_is_up, "the worker")
        yield worker
    finally:
        worker.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a server that has gone
            worker.wait(patient(20))
        worker.kill()
        worker.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path) -> Iterator[Path]:
    """Return a folder with a store, while a server and a worker run."""
    folder = tmp_path_factory.mktemp("approval_worker")
    with _server(folder, empty_prefect), _worker(folder):
        client()
        yield folder


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def _suspended(reference: ModelReference) -> ApprovalRequest:
    """Request approval through the worker, and return the request once it waits."""
    said = opening.request_approval(reference, QUICK)
    assert said is not None
    assert "Approval requested" in said
    version = f"{reference.name}/{reference.version}"
    [asked] = [each for each in requests.open_requests() if each.reference == version]
    _wait_for(lambda: requests.refreshed(asked).waits, "the question")
    return requests.refreshed(asked)


def _flow_processes(asked: ApprovalRequest) -> list[psutil.Process]:
    """Return the processes that carry out a flow run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == str(asked.flow_run_id):
                found.append(process)
    return found


def test_approve_and_reject_on_the_command_line(here: Path) -> None:
    """The flow holds no process while it waits; each command reports the outcome."""
    _, better, best = versions("roses", here, range(60), range(10), range(5))
    asked = _suspended(better)
    _wait_for(lambda: not _flow_processes(asked), "no process")
    assert live_runs.records(here / ".patchline") == []
    run_id = str(client().get_model_version("roses", better.version).run_id)
    done = patchline("approve", run_id[:8], "--reason", "looks good", "--json", cwd=here)
    assert done.code == 0, done.err
    answer = done.json
    assert answer["reason"].startswith("approved by ")
    assert "looks good; better than version 1" in answer["reason"]
    del answer["reason"]
    assert answer == {
        "answer": "approved", "promoted": True, "name": "roses", "version": "2", "champion": "2",
    }  # fmt: skip
    _suspended(best)
    done = patchline("reject", "roses/3", "--reason", "blurry", cwd=here)
    assert done.code == 0, done.err
    assert "roses, version 3: not promoted" in done.out
    assert "blurry" in done.out
    assert champion("roses") == "2"
    done = patchline("approve", "roses/3", cwd=here)
    assert done.code == 2
    assert "roses/3 is closed: rejected by" in done.err


def test_a_gate_that_fails_in_the_end_is_exit_code_3(here: Path) -> None:
    """The command reports it as `promote` does."""
    _, equal = versions("tulips", here, range(60), range(60))
    done = patchline(
        "promote", "tulips", "--ask", "--promotion.no-package-check", "--json", cwd=here
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["asked"] is True
    done = patchline("approve", f"tulips/{equal.version}", "--json", cwd=here)
    assert done.code == 3, done.err
    assert (done.json["promoted"], done.json["champion"]) == (False, "1")


def test_sigkill_right_after_the_answer_loses_nothing(here: Path) -> None:
    """The worker reports the kill, the keeper retries the flow run, and the answer counts."""
    _, better = versions("violets", here, range(60), range(10))
    asked = _suspended(better)
    _wait_for(lambda: not _flow_processes(asked), "no process")
    assert approval_form.submit(asked, YES)
    _wait_for(lambda: bool(_flow_processes(asked)), "the process that carries it out")
    for process in _flow_processes(asked):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    _wait_for(lambda: requests.refreshed(asked).failed, "Crashed")
    assert champion("violets") == "1"

    def promoted() -> bool:
        expiry.expire_overdue()
        return requests.refreshed(asked).state == "Promoted"

    _wait_for(promoted, "the promotion")
    assert champion("violets") == "2"
    with get_client(sync_client=True) as prefect:
        assert retries.count_failures(prefect, asked.flow_run_id, was_interrupted) == 1


def test_a_deadline_while_the_servers_are_down(
    tmp_path: Path, empty_prefect: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request expires once they run again; Prefect does not fail the flow run meanwhile."""
    database = tmp_path / "prefect.db"
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{database}")
    config = QUICK.model_copy(update={"approval_hours": 1 / 3600})
    with _server(tmp_path, empty_prefect):
        _, better = versions("irises", tmp_path, range(60), range(10))
        asked = asked_about(better, config)
    time.sleep(1.5)
    with _server(tmp_path, empty_prefect):
        time.sleep(6)  # Prefect's own look at what was paused too long comes every 5 s
        assert requests.refreshed(asked).waits
        expiry.expire_overdue()
        ended = carry_on(asked)
        assert ended.state == "Not promoted: no answer in time"
        assert champion("irises") == "1"
