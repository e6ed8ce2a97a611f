"""Send events to Prefect: the UI shows them, automations and webhooks react to them.

The code that changes something calls `emit` right afterwards. Without a server nothing is sent, and
a failure to send never raises. Importing this module is cheap.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from patchline.flows.notifications import event_kinds
from patchline.flows.prefect_api import folder_labels
from patchline.pipeline import local_login

if TYPE_CHECKING:
    from uuid import UUID

    from patchline.pipeline.evaluation.promotion_decision import Decision

logger = logging.getLogger(__name__)

_LISTEN_SECONDS = 0.5
_FLUSH_SECONDS = 5.0


def emit(event: str, resource: str, payload: Mapping[str, Any]) -> None:
    """Send an event to the server in use without waiting for it; never raises.

    Inside a flow run the event is linked to that run. A background thread sends it, and the process
    waits for that thread at exit; call `flush` before stopping a server.

    Args:
        event: one of the names in `event_kinds`.
        resource: the id of the resource, such as `patchline.model.flowers`.
        payload: the keys that `event_kinds.KINDS` lists for the event.
    """
    try:
        with _using_server() as found:
            if found:
                _send(event, resource, event_kinds.complete_payload(event, payload))
    except Exception:
        logger.debug("the event %s was not sent", event, exc_info=True)


def deliver(event: str, resource: str, payload: Mapping[str, Any], event_id: UUID) -> bool:
    """Send an event to the server in use, and return whether the server has taken it; never raises.

    What was not taken may be sent again: Prefect stores an id once, and passes it on once in five
    minutes.

    Args:
        event: one of the names in `event_kinds`.
        resource: the id of the resource, such as `patchline.model.flowers`.
        payload: the keys that `event_kinds.KINDS` lists for the event.
        event_id: the same whenever this event is sent.
    """
    try:
        with _using_server() as found:
            if found:
                complete = event_kinds.complete_payload(event, payload)
                _post(event, _labels(resource, complete), complete, event_id)
            return found
    except Exception:
        logger.debug("the event %s was not delivered", event, exc_info=True)
        return False


def emit_decision(decision: Decision) -> None:
    """Send the event of a promotion decision, unless the version already was champion."""
    if decision.champion == decision.version:
        return
    facts = {"name": decision.name, "version": decision.version, "reason": decision.reason}
    resource = f"patchline.model.{decision.name}"
    if decision.promoted:
        payload = {"before": decision.champion, "forced": decision.forced}
        emit(event_kinds.MODEL_PROMOTED, resource, {**facts, **payload})
    else:
        emit(event_kinds.MODEL_REFUSED, resource, {**facts, "champion": decision.champion})


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
def _using_server() -> Iterator[bool]:
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
    for value in local_login.prefect_login(address).values():
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
