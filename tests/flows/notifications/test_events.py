"""Events arrive at a server, and nothing waits for one that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from patchline.flows.notifications import events
from patchline.pipeline.automation import event_kinds
from tests.flows.lasting_server import LastingServer
from tests.patience import patient, until

_EMITTING = """
import sys
from patchline.flows.notifications import events
from patchline.pipeline.automation import event_kinds
events.emit(event_kinds.MODEL_REFUSED, "patchline.model.short", {"name": "short", "version": "2"})
print("prefect" in sys.modules)
"""


@pytest.fixture
def server(event_server: LastingServer) -> str:
    """Return the address of a server's API."""
    return event_server.url()


@flow
def telling(number: int) -> None:
    """Emit an event from inside a flow."""
    facts = {"name": "inside", "run_id": str(number)}
    events.emit(event_kinds.RUN_STARTED, "patchline.run.inside", facts)


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9/api"])
def test_a_server_that_is_not_there_costs_nothing(url: str | None) -> None:
    """Prefect is not even imported; its own client would try for seconds."""
    assert _emit_in_a_command(url) == "False"


@pytest.mark.parametrize("event", ["patchline.no.such", event_kinds.RUN_FAILED])
def test_emitting_never_raises(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown event and a nonsensical address are no reason to stop."""
    monkeypatch.setenv("PREFECT_API_URL", "http://[nonsense/api")
    events.emit(event, "patchline.run.x", {"name": "x"})
    events.flush(0.1)


def test_the_last_event_of_a_short_command_arrives(server: str) -> None:
    """The end of the process waits until the event is sent; it tells the working directory."""
    assert _emit_in_a_command(server) == "True"
    [event] = _arrived(server, "patchline.model.short")
    assert event["payload"]["version"] == "2"
    assert event["resource"]["patchline.folder"] == str(Path.cwd())
    assert event["resource"]["prefect.resource.name"] == "short"


def test_an_event_of_a_flow_belongs_to_its_run(server: str) -> None:
    """Inside a flow run the event carries the run, so that its page shows it."""
    with temporary_settings({PREFECT_API_URL: server}):
        telling(7)
        events.flush()
    [event] = _arrived(server, "patchline.run.inside")
    roles = {related["prefect.resource.role"] for related in event["related"]}
    assert "flow-run" in roles


def test_what_is_delivered_twice_arrives_once(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender knows whether the server has taken it; without one, it has not."""
    facts, own = {"name": "delivered", "version": "1"}, uuid4()

    def deliver() -> bool:
        resource = "patchline.model.delivered"
        return events.deliver(event_kinds.DRIFT_DETECTED, resource, facts, own)

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert not deliver()
    monkeypatch.setenv("PREFECT_API_URL", server)
    assert deliver()
    assert deliver()
    events.emit(event_kinds.MODEL_PROMOTED, "patchline.model.delivered", facts)
    events.flush()
    arrived = _arrived(server, "patchline.model.delivered", count=2)
    assert [each["id"] for each in arrived].count(str(own)) == 1
    assert len(arrived) == 2


def _emit_in_a_command(url: str | None) -> str:
    """Return what the command prints; it must print nothing else."""
    environment = {**os.environ, **({"PREFECT_API_URL": url} if url else {})}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _EMITTING],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(120),
    )
    assert done.stderr == ""
    return done.stdout.strip()


def _arrived(server: str, resource: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the events about a resource, when there are enough of them."""
    wanted = {"filter": {"resource": {"id": [resource]}}}
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        found: list[dict[str, Any]] = []

        def arrived() -> bool:
            found[:] = client.request("POST", "/events/filter", json=wanted).json()["events"]
            return len(found) >= count

        until(arrived, f"fewer than {count} events about {resource} arrived")
    return found
