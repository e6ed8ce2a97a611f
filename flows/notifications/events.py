"""Tell Prefect what happened: events with stable names, for its pages, automations and webhooks.

Whoever does something calls `emit` right after it. Without a server nothing happens, and an event
that cannot be sent is no reason to stop: `emit` never raises. Importing this module is cheap.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pipeline import local_login
from pipeline.redaction import redacted

if TYPE_CHECKING:
    from pipeline.evaluation.promotion_decision import Decision

logger = logging.getLogger(__name__)

RUN_STARTED = "patchline.run.started"
RUN_FINISHED = "patchline.run.finished"
RUN_FAILED = "patchline.run.failed"
RUN_KILLED = "patchline.run.killed"
RUN_SKIPPED = "patchline.run.skipped"
MODEL_REGISTERED = "patchline.model.registered"
MODEL_PROMOTED = "patchline.model.promoted"
MODEL_REFUSED = "patchline.model.refused"
MODEL_ROLLED_BACK = "patchline.model.rolled_back"
APPROVAL_ASKED = "patchline.approval.asked"
APPROVAL_ANSWERED = "patchline.approval.answered"
APPROVAL_EXPIRED = "patchline.approval.expired"
DATA_CHANGED = "patchline.data.changed"
DATA_UPDATED = "patchline.data.updated"
SERVICES_RESTARTED = "patchline.services.restarted"

PREFIX = "patchline."
_LONGEST_VALUE = 500
_LISTEN_SECONDS = 0.5
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class Kind:
    """One kind of event: when it is sent, what it is about, and what it carries."""

    when: str
    """What has just happened, as the documentation says it."""
    resource: str
    """The id of what it happened to; the part in capitals differs from event to event."""
    payload: tuple[str, ...]
    """The keys that it may carry beside `sentence`; a key without a value is left out."""
    sentence: str
    """What a person reads; a key that the payload lacks becomes a question mark."""


KINDS: Mapping[str, Kind] = {
    RUN_STARTED: Kind(
        "A training has opened its MLflow run",
        "patchline.run.RUN_ID",
        ("name", "run_id", "data"),
        "The training of {name} has started.",
    ),
    RUN_FINISHED: Kind(
        "A training has ended well, its model is registered",
        "patchline.run.RUN_ID",
        ("name", "run_id", "version", "accuracy", "seconds"),
        "The training of {name} has finished: version {version}, test accuracy {accuracy}.",
    ),
    RUN_FAILED: Kind(
        "A training has ended with an error",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "The training of {name} has failed: {reason}",
    ),
    RUN_KILLED: Kind(
        "A training was stopped, or its process was found dead",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "The training of {name} was killed: {reason}",
    ),
    RUN_SKIPPED: Kind(
        "A watched folder has changed, but too little is new to train on",
        "patchline.model.NAME",
        ("name", "new_images", "asked", "removed", "relabelled", "reason"),
        "{name} was not trained again: {reason}",
    ),
    MODEL_REGISTERED: Kind(
        "A version stands in the registry",
        "patchline.model.NAME",
        ("name", "version", "run_id", "accuracy"),
        "Version {version} of {name} is registered, test accuracy {accuracy}.",
    ),
    MODEL_PROMOTED: Kind(
        "A version has become champion",
        "patchline.model.NAME",
        ("name", "version", "before", "forced", "reason"),
        "Version {version} of {name} is champion: {reason}",
    ),
    MODEL_REFUSED: Kind(
        "A version was not made champion, by a gate or a person",
        "patchline.model.NAME",
        ("name", "version", "champion", "reason"),
        "Version {version} of {name} was not made champion: {reason}",
    ),
    MODEL_ROLLED_BACK: Kind(
        "The champion before the present one is champion again",
        "patchline.model.NAME",
        ("name", "version", "before", "reason"),
        "Version {version} of {name} is champion again, instead of version {before}: {reason}",
    ),
    APPROVAL_ASKED: Kind(
        "A version waits for a person's answer",
        "patchline.model.NAME",
        ("name", "version", "champion", "flow_run_id", "expires"),
        "Version {version} of {name} waits until {expires} for somebody to approve or reject it.",
    ),
    APPROVAL_ANSWERED: Kind(
        "A person has approved or rejected a version",
        "patchline.model.NAME",
        ("name", "version", "answer", "reason", "flow_run_id"),
        "The answer about version {version} of {name}: {reason}.",
    ),
    APPROVAL_EXPIRED: Kind(
        "Nobody has answered in time, so the version is refused",
        "patchline.model.NAME",
        ("name", "version", "flow_run_id"),
        "Nobody answered in time about version {version} of {name}; the champion stays.",
    ),
    DATA_CHANGED: Kind(
        "A watched folder has changed and is quiet again; its run is started",
        "patchline.watch.WATCH",
        ("name", "folder", "files", "flow_run_id"),
        "A run looks at the folder of {name}, which holds {files} files now.",
    ),
    DATA_UPDATED: Kind(
        "Sent from outside, by you: a watched folder should be looked at",
        "patchline.watch.WATCH",
        (),
        "There is new data.",
    ),
    SERVICES_RESTARTED: Kind(
        "A server or the runner of `patchline up` had died and runs again",
        "patchline.service.SERVICE",
        ("service", "reason"),
        "`patchline up` had to start {service} again: it {reason}.",
    ),
}


class _Gaps(dict[str, Any]):
    """What fills a sentence: a question mark where a key is missing."""

    def __missing__(self, key: str) -> str:
        return "?"


def emit(event: str, resource: str, payload: Mapping[str, Any]) -> None:
    """Send an event to the server in use, without waiting for it; never raises.

    Inside a flow run it carries that run along. It is sent by a thread that the end of the process
    waits for; call `flush` before a server is stopped.

    Args:
        event: one of the names above.
        resource: the id of what it happened to, such as `patchline.model.flowers`.
        payload: what `KINDS` lists for it; credentials in addresses are cut out, long texts cut.
    """
    try:
        with _server_known() as there:
            if there:
                _send(event, resource, content(event, payload))
    except Exception:
        logger.debug("the event %s was not sent", event, exc_info=True)


def tell_decision(decision: Decision) -> None:
    """Send the event of a decision about a champion, unless nothing was to decide."""
    if decision.champion == decision.version:
        return
    facts: dict[str, Any] = {"reason": decision.reason}
    if decision.promoted:
        facts |= {"before": decision.champion, "forced": decision.forced}
    else:
        facts["champion"] = decision.champion
    event = MODEL_PROMOTED if decision.promoted else MODEL_REFUSED
    known = {"name": decision.name, "version": decision.version}
    emit(event, f"patchline.model.{decision.name}", {**known, **facts})


def content(event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent: the documented keys, and a sentence that a person can read."""
    kind = KINDS[event]
    for key in payload.keys() - set(kind.payload):
        logger.debug("the event %s has no key '%s'", event, key)
    kept = {
        key: _harmless(payload[key]) for key in kind.payload if payload.get(key) not in (None, "")
    }
    sentence = kind.sentence.format_map(_Gaps({key: _shown(value) for key, value in kept.items()}))
    return {**kept, "sentence": sentence}


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Wait until the events of this process have been sent, at most so many seconds."""
    if "prefect.events.worker" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker

    def drain() -> None:
        try:
            EventsWorker.drain_all(timeout=seconds, at_exit=False)
        except Exception:
            logger.debug("events could not be flushed", exc_info=True)

    waiting = threading.Thread(target=drain, daemon=True)
    waiting.start()
    waiting.join(seconds)


def _send(event: str, resource: str, payload: dict[str, Any]) -> None:
    from prefect.events import emit_event

    logging.getLogger("EventsWorker").setLevel(logging.ERROR)  # tells of every end that waits
    labels = {
        "prefect.resource.id": resource,
        "prefect.resource.name": str(payload.get("name") or payload.get("service") or resource),
        "patchline.folder": str(Path.cwd()),
    }
    emit_event(event, resource=labels, payload=payload)


@contextmanager
def _server_known() -> Iterator[bool]:
    """Use the server of the flow run, of the settings or of `patchline up`; tell if there is one.

    A server that does not listen would hold up the end of the process for seconds, so that is
    asked first; a flow run has its server.
    """
    if "prefect.context" in sys.modules:
        from prefect.context import FlowRunContext, TaskRunContext

        if FlowRunContext.get() or TaskRunContext.get():
            yield True
            return
    address = _address()
    if address is None or not _listens(address):
        yield False
        return
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    updates = {PREFECT_API_URL: address}
    for value in local_login.prefect_login(address).values():
        updates[PREFECT_API_AUTH_STRING] = value
    with temporary_settings(updates):
        yield True


def _address() -> str | None:
    """Return the server's address; Prefect itself is only asked where it is loaded already."""
    from pipeline import local_services

    given = os.environ.get("PREFECT_API_URL")
    if given is None and "prefect.settings" in sys.modules:
        from prefect.settings import get_current_settings

        given = get_current_settings().api.url
    if given:
        return given
    services = local_services.running()
    return services.prefect_api_url if services else None


def _listens(address: str) -> bool:
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_LISTEN_SECONDS):
            return True
    except OSError:
        return False


def _harmless(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return redacted(str(value))[:_LONGEST_VALUE]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
