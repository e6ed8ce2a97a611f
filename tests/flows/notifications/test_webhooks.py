"""Events and notifications on a real Prefect server with SQLite, sent to a real receiver."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.events import emit_event

from patchline.flows.notifications import events, webhooks
from tests.made.servers import Command
from tests.patience import patient, until

_EMITTING = """
import os, sys
from patchline.flows.notifications import events
for url in sys.argv[1:]:
    os.environ |= {"PREFECT_API_URL": url} if url else {}
    events.emit(events.MODEL_REFUSED, "patchline.model.short", {"name": "short", "version": "2"})
print("prefect" in sys.modules)
"""


_PROBE = "patchline.probe"
_SECRET = "T0ken-in-the-path"  # noqa: S105 - of no service


class Receiver(ThreadingHTTPServer):
    """A receiver of webhooks that can refuse at first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.refusals = 0
        self.probed = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}/{_SECRET}"

    def wait_until_expected(self, event: str) -> None:
        """Send probes until one comes: the server learns of a new notification a bit later."""

        def probed() -> bool:
            events.emit(event, _PROBE, {})
            return self.probed.wait(0.2)

        until(probed, "no probe came")

    def wait_for(self, count: int) -> None:
        """Wait until so many messages came, and a moment for one too many."""
        until(lambda: len(self.bodies) >= count, f"fewer than {count} messages came")
        time.sleep(0.25)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["resource"] == _PROBE:
            self.server.probed.set()
            self.send_response(204)
            self.end_headers()
            return
        self.server.paths.append(self.path)
        if self.server.refusals:
            self.server.refusals -= 1
            self.send_response(500)
        else:
            self.server.bodies.append(body)
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.shutdown()
    started.server_close()


@pytest.fixture(autouse=True)
def server(event_api: str) -> str:
    """Return the server's address; what an earlier test has left there is removed."""
    for each in webhooks.read_all():
        webhooks.remove(each.name)
    return event_api


def test_each_event_becomes_one_post(receiver: Receiver) -> None:
    """Events at once reach the receiver, each once and whole; an answer of 500 is a failure.

    Then the message comes again.
    """
    webhooks.create("team", receiver.address, ["run.failed"])
    receiver.wait_until_expected(events.RUN_FAILED)
    for number in range(5):
        facts = {"name": "flowers", "run_id": str(number), "reason": 'a "bad" <disk>\nis full'}
        events.emit(events.RUN_FAILED, f"patchline.run.{number}", facts)
        events.emit(events.RUN_FINISHED, f"patchline.run.{number}", {"name": "flowers"})
    receiver.wait_for(5)
    assert sorted(int(body["payload"]["run_id"]) for body in receiver.bodies) == list(range(5))
    assert len({body["id"] for body in receiver.bodies}) == 5
    body = receiver.bodies[0]
    assert body["event"] == events.RUN_FAILED
    assert body["resource"] == f"patchline.run.{body['payload']['run_id']}"
    assert body["sentence"] == 'Training of flowers has failed: a "bad" <disk>\nis full'
    assert body["text"] == body["sentence"]
    assert body["time"].endswith("+00:00")
    assert set(receiver.paths) == {f"/{_SECRET}"}
    receiver.refusals = 2
    events.emit(events.RUN_FAILED, "patchline.run.6", {"name": "flowers"})
    receiver.wait_for(6)
    assert (len(receiver.bodies), len(receiver.paths)) == (6, 8)


def test_a_second_create_changes_the_first(run_here: Command, receiver: Receiver) -> None:
    """The name is the key: address and events are replaced, and one message comes, not two."""
    create = ("notify create team --webhook",)
    run_here.out(*create, "https://example.org/old")
    chosen = ("--on", "patchline.data.changed", "--on", "run.killed")
    assert "on data.changed, run.killed" in run_here.out(*create, receiver.address, *chosen)
    [only] = webhooks.read_all()
    assert only.events == ("data.changed", "run.killed")
    receiver.wait_until_expected(events.DATA_CHANGED)
    events.emit(events.DATA_CHANGED, "patchline.watch.photos", {"name": "photos"})
    receiver.wait_for(1)
    assert [body["event"] for body in receiver.bodies] == [events.DATA_CHANGED]
    # what others emit under our names is told by the name of the event
    emit_event(events.DATA_CHANGED, resource={"prefect.resource.id": "patchline.watch.x"})
    receiver.wait_for(2)
    assert receiver.bodies[1]["sentence"] == events.DATA_CHANGED


def test_the_address_stays_a_secret(run_here: Command) -> None:
    """Only scheme and host are shown: by the commands, and by what the Prefect UI asks for."""
    address = f"https://me:pass@hooks.example.org:8443/{_SECRET}?key=other"
    created = run_here.out("notify create team --webhook", address)
    [only] = run_here.json("notify list")["notifications"]
    assert only["webhook"] == "https://hooks.example.org:8443"
    defaults = ["drift.detected", "model.promoted", "model.refused", "run.failed", "run.killed"]
    assert only["events"] == defaults
    with get_client(sync_client=True) as client:
        automations = client.request("POST", "/automations/filter", json={}).text
        blocks = client.request("POST", "/block_documents/filter", json={}).text
    for shown in (created, str(only), automations, blocks):
        assert _SECRET not in shown
        assert "pass@" not in shown
    assert "hooks.example.org" not in automations + blocks


def test_what_the_pages_change_is_shown_and_removing_leaves_nothing(run_here: Command) -> None:
    """The list tells of a pause and of a deleted block; creating it again repairs it.

    A removal with a wrong name says what there is.
    """
    for name in ("boss", "team"):
        run_here("notify create", name, "--webhook", f"https://example.org/{name}")
    run_here.out("notify remove boss")
    assert "Choose from: team." in run_here.refusal("notify remove tem")
    with get_client(sync_client=True) as client:
        blocks = functools.partial(client.request, "POST", "/block_documents/filter", json={})
        [block] = blocks().json()
        [automation] = client.read_automations_by_name("Patchline notification: team")
        client.pause_automation(automation.id)
        client.delete_block_document(block["id"])
        out = run_here.out("notify list")
        assert "URL deleted, create it again" in out
        assert "switched off in the Prefect UI" in out
        run_here("notify create team --webhook https://example.org/1")
        [only] = webhooks.read_all()
        assert (only.webhook, only.enabled) == ("https://example.org", True)
        assert run_here.json("notify remove team")
        assert "No notifications yet." in run_here.out("notify list")
        assert blocks().json() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("team", "--webhook", "https://e.org", "--on", "run.fail"), "Did you mean run.failed?"),
        (("team", "--webhook", f"ftp://e.org/{_SECRET}"), "--webhook is not a web address:"),
        (("team", "--webhook", f"https://e.org/a b{_SECRET}"), "--webhook is not a web address:"),
        (("The team", "--webhook", "https://e.org"), "'The team' cannot be the name"),
    ],
)
def test_wrong_input_is_one_sentence(
    run_here: Command, arguments: tuple[str, ...], words: str
) -> None:
    """The remedy is named, and an address that may be secret is not repeated."""
    err = run_here.refusal("notify create", *arguments)
    assert (words in err, _SECRET in err) == (True, False)


def test_a_server_that_is_not_there_costs_nothing() -> None:
    """Prefect is not even imported; its own client would try for seconds."""
    assert _emit_in_a_command("", "http://127.0.0.1:9/api") == "False"


def test_the_last_event_of_a_short_command_arrives(server: str) -> None:
    """The end of the process waits until the event is sent; it tells the working directory."""
    assert _emit_in_a_command(server) == "True"
    [event] = _arrived("patchline.model.short")
    assert event["payload"]["version"] == "2"
    assert event["resource"]["patchline.folder"] == str(Path.cwd())
    assert event["resource"]["prefect.resource.name"] == "short"


def test_what_is_delivered_twice_arrives_once(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender knows whether the server has taken it; without one, it has not."""
    facts, own = {"name": "delivered", "version": "1"}, uuid4()

    def deliver() -> bool:
        resource = "patchline.model.delivered"
        return events.deliver("patchline.drift.detected", resource, facts, own)

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert not deliver()
    monkeypatch.setenv("PREFECT_API_URL", server)
    assert deliver()
    assert deliver()
    events.emit(events.MODEL_PROMOTED, "patchline.model.delivered", facts)
    events.flush()
    arrived = _arrived("patchline.model.delivered", count=2)
    assert [each["id"] for each in arrived].count(str(own)) == 1
    assert len(arrived) == 2


def _emit_in_a_command(*servers: str) -> str:
    """Emit for each server; return what the command prints, which must print nothing else."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _EMITTING, *servers],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(120),
    )
    assert done.stderr == ""
    return done.stdout.strip()


def _arrived(resource: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the events about a resource, when there are enough of them."""
    wanted = {"filter": {"resource": {"id": [resource]}}}
    found: list[dict[str, Any]] = []
    with get_client(sync_client=True) as client:

        def arrived() -> bool:
            found[:] = client.request("POST", "/events/filter", json=wanted).json()["events"]
            return len(found) >= count

        until(arrived, f"fewer than {count} events about {resource} arrived")
    return found
