"""Send events to Prefect: the UI shows them, automations and webhooks react to them.

The code that changes something calls `emit` right afterwards. Without a server nothing is sent, and
a failure to send never raises. Importing this module is cheap.

The names and payload keys are stable; docs/how_to/notifications.md lists them, with those of the
built-in tools.
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

from patchline.flows.prefect_api import folder_labels
from patchline.pipeline import local_services
from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.redaction import redact_text

if TYPE_CHECKING:
    from uuid import UUID

    from patchline.pipeline.evaluation.promotion_decision import PromotionDecision


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


@dataclass(frozen=True)
class Kind:
    """A kind of event: when it is sent, what it is about, and what it carries."""

    when: str
    """What has just happened, as docs/how_to/notifications.md describes it."""
    resource: str
    """The resource's id; the part in capitals is a placeholder."""
    payload: tuple[str, ...]
    """The keys of the payload besides `sentence`; a key without a value is left out."""
    sentence: str
    """The message for people; a missing key is shown as a question mark."""
    without_accuracy: str = ""
    """The message about an encoder, which has no accuracy."""


KINDS: Mapping[str, Kind] = {
    RUN_STARTED: Kind(
        "A training run has started and opened its MLflow run",
        "patchline.run.RUN_ID",
        ("name", "run_id", "data"),
        "Training of {name} has started.",
    ),
    RUN_FINISHED: Kind(
        "A training run has finished and registered its model",
        "patchline.run.RUN_ID",
        ("name", "run_id", "version", "accuracy", "seconds"),
        "Training of {name} has finished: version {version}, test accuracy {accuracy}.",
        "Training of {name} has finished: version {version}.",
    ),
    RUN_FAILED: Kind(
        "A training run has failed",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "Training of {name} has failed: {reason}",
    ),
    RUN_KILLED: Kind(
        "A training run was stopped, or its process was found dead",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "Training of {name} was killed: {reason}",
    ),
    RUN_SKIPPED: Kind(
        "A watched folder has changed, but has too few new images to train on",
        "patchline.model.NAME",
        ("name", "new_images", "asked", "removed", "relabelled", "reason"),
        "Training of {name} was skipped: {reason}",
    ),
    MODEL_REGISTERED: Kind(
        "A version was registered",
        "patchline.model.NAME",
        ("name", "version", "run_id", "accuracy"),
        "Version {version} of {name} was registered, test accuracy {accuracy}.",
        "Version {version} of {name} was registered.",
    ),
    MODEL_PROMOTED: Kind(
        "A version became champion",
        "patchline.model.NAME",
        ("name", "version", "before", "forced", "reason"),
        "Version {version} of {name} is now champion: {reason}",
    ),
    MODEL_REFUSED: Kind(
        "A version was not promoted: a gate failed or approval was rejected",
        "patchline.model.NAME",
        ("name", "version", "champion", "reason"),
        "Version {version} of {name} was not promoted: {reason}",
    ),
    MODEL_ROLLED_BACK: Kind(
        "The previous champion was restored",
        "patchline.model.NAME",
        ("name", "version", "before", "reason"),
        "Rolled {name} back from version {before} to version {version}: {reason}",
    ),
    APPROVAL_ASKED: Kind(
        "A promotion is waiting for approval",
        "patchline.model.NAME",
        ("name", "version", "champion", "flow_run_id", "expires"),
        "Version {version} of {name} is waiting for approval until {expires}.",
    ),
    APPROVAL_ANSWERED: Kind(
        "A promotion was approved or rejected",
        "patchline.model.NAME",
        ("name", "version", "answer", "reason", "flow_run_id"),
        "The promotion of version {version} of {name} was answered: {reason}.",
    ),
    APPROVAL_EXPIRED: Kind(
        "An approval request expired without an answer, so the version was not promoted",
        "patchline.model.NAME",
        ("name", "version", "flow_run_id"),
        "The approval of version {version} of {name} has expired; the champion is unchanged.",
    ),
    DATA_CHANGED: Kind(
        "A watched folder has changed and settled; its run was started",
        "patchline.watch.WATCH",
        ("name", "folder", "files", "flow_run_id"),
        "The watched folder of {name} has changed ({files} files); a run was started.",
    ),
    DATA_UPDATED: Kind(
        "Sent by your own programs: a watched folder has new data",
        "patchline.watch.WATCH",
        (),
        "There is new data.",
    ),
    SERVICES_RESTARTED: Kind(
        "A server or the runner of `patchline up` died and was restarted",
        "patchline.service.SERVICE",
        ("service", "reason"),
        "`patchline up` restarted {service}: it {reason}.",
    ),
}


def kinds() -> Mapping[str, Kind]:
    """Return the events of Patchline, and those of the installed tools, by name."""
    of_tools = {
        each.name: Kind(each.when, each.resource, each.payload, each.sentence)
        for each in tools().besides(KINDS).events()
    }
    return {**KINDS, **of_tools}


class _QuestionMarks(dict[str, Any]):
    """The values of a sentence; a missing key becomes a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def complete_payload(event: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an event carries: its documented keys, and the sentence for people.

    Credentials in URLs are removed and long texts truncated; undocumented keys are dropped.
    """
    kind = kinds()[event]
    for key in facts.keys() - set(kind.payload):
        logger.debug("the event %s has no key '%s'", event, key)
    kept = {key: _safe(facts[key]) for key in kind.payload if facts.get(key) not in (None, "")}
    shown = {key: f"{each:.4g}" if isinstance(each, float) else each for key, each in kept.items()}
    short = kind.without_accuracy if "accuracy" not in kept else ""
    return {**kept, "sentence": (short or kind.sentence).format_map(_QuestionMarks(shown))}


def _safe(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return redact_text(str(value))[:_LONGEST_VALUE]


_LISTEN_SECONDS = 0.5
_FLUSH_SECONDS = 5.0


def emit(event: str, resource: str, payload: Mapping[str, Any]) -> None:
    """Send an event to the server in use without waiting for it; never raises.

    Inside a flow run the event is linked to that run. A background thread sends it, and the process
    waits for that thread at exit; call `flush` before stopping a server.

    Args:
        event: one of the names above.
        resource: the id of the resource, such as `patchline.model.flowers`.
        payload: the keys that `KINDS` lists for the event.
    """
    try:
        with _use_server() as found:
            if found:
                _send(event, resource, complete_payload(event, payload))
    except Exception:
        logger.debug("the event %s was not sent", event, exc_info=True)


def deliver(event: str, resource: str, payload: Mapping[str, Any], event_id: UUID) -> bool:
    """Send an event to the server in use, and return whether the server has taken it; never raises.

    What was not taken may be sent again: Prefect stores an id once, and passes it on once in five
    minutes.

    Args:
        event: one of the names above.
        resource: the id of the resource, such as `patchline.model.flowers`.
        payload: the keys that `KINDS` lists for the event.
        event_id: the same whenever this event is sent.
    """
    try:
        with _use_server() as found:
            if found:
                complete = complete_payload(event, payload)
                _post(event, _labels(resource, complete), complete, event_id)
            return found
    except Exception:
        logger.debug("the event %s was not delivered", event, exc_info=True)
        return False


def emit_decision(decision: PromotionDecision) -> None:
    """Send the event of a promotion decision, unless the version already was champion."""
    if decision.champion == decision.version:
        return
    facts = {"name": decision.name, "version": decision.version, "reason": decision.reason}
    resource = f"patchline.model.{decision.name}"
    if decision.promoted:
        payload = {"before": decision.champion, "forced": decision.forced}
        emit(MODEL_PROMOTED, resource, {**facts, **payload})
    else:
        emit(MODEL_REFUSED, resource, {**facts, "champion": decision.champion})


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Wait until this process has sent its events, at most this many seconds."""
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

    logging.getLogger("EventsWorker").setLevel(logging.ERROR)  # its warnings at each exit are noise
    emit_event(event, resource=_labels(resource, payload), payload=payload)


def _post(event: str, labels: dict[str, str], payload: dict[str, Any], event_id: UUID) -> None:
    """Send an event by a request, which the server answers, unlike what a background thread sends.

    Raises:
        Exception: of Prefect or of the connection, if the server has not taken it.
    """
    from prefect.client.orchestration import get_client
    from prefect.events import Event, RelatedResource, Resource
    from prefect.runtime import flow_run

    own = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"}
    related = [{**own, "prefect.resource.role": "flow-run"}] if flow_run.id else []
    whole = Event(
        event=event,
        resource=Resource.model_validate(labels),
        related=[RelatedResource.model_validate(each) for each in related],
        payload=payload,
        id=event_id,
    )
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[whole.model_dump(mode="json")])


def _labels(resource: str, payload: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies the resource of an event."""
    return {
        "prefect.resource.id": resource,
        "prefect.resource.name": str(payload.get("name") or payload.get("service") or resource),
        **folder_labels.of(Path()),
    }


@contextmanager
def _use_server() -> Iterator[bool]:
    """Use the server of the flow run, of the settings or of `patchline up`; yield if there is one.

    A server that does not listen would delay the exit of the process by seconds, so check first.
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
    for value in local_services.prefect_login(address).values():
        updates[PREFECT_API_AUTH_STRING] = value
    with temporary_settings(updates):
        yield True


def _address() -> str | None:
    """Return the server's URL; Prefect's settings are read only if Prefect is already imported."""
    from patchline.pipeline import local_services

    given = os.environ.get("PREFECT_API_URL")
    if given is None and "prefect.settings" in sys.modules:
        from prefect.settings import get_current_settings

        given = get_current_settings().api.url
    if given:
        return given
    services = local_services.find_running()
    return services.prefect_api_url if services else None


def _listens(address: str) -> bool:
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_LISTEN_SECONDS):
            return True
    except OSError:
        return False
