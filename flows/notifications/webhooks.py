"""Notifications: an event of Patchline becomes a POST with a JSON object to a web address.

Each is a Prefect automation with an action of its own block, so that Prefect's pages show it. The
functions expect that Prefect's settings name a server; `prefect_session.connected` sees to it.

The action is `SendNotification` with a custom webhook block and not `CallWebhook` with a webhook
block: in Prefect 3.8 all webhook blocks share one connection pool, and the end of each call closes
it under the other call that goes on, so that messages are lost; also, an answer such as 500 counts
as delivered. The custom block has a connection of its own; what fails is tried three times more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from flows.notifications import events
from pipeline.errors import ConfigError
from pipeline.section import Section

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore

DEFAULT_EVENTS = (
    events.RUN_FAILED,
    events.RUN_KILLED,
    events.MODEL_PROMOTED,
    events.MODEL_REFUSED,
)
"""What a notification tells of when nothing else is asked for: failures, promotions, refusals."""

_TITLE = "Patchline notification: "
_TAG = "patchline.notification"
_BLOCK_TYPE = "custom-webhook"
_ADDRESS = "address"
_TIMEOUT_SECONDS = 5.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
_BODY = """\
{"event": {{ event.event | tojson }},
 "resource": {{ event.resource.id | tojson }},
 "time": {{ event.occurred.isoformat() | tojson }},
 "sentence": {{ (event.payload.sentence or event.event) | tojson }},
 "text": {{ (event.payload.sentence or event.event) | tojson }},
 "payload": {{ event.payload | tojson }},
 "id": {{ event.id | string | tojson }}}
"""
"""`text` is where chat programs look for the sentence; `id` tells a repetition from a new event."""


class Notification(Section):
    """A notification as it is shown: the address without path, user and password."""

    name: str
    events: tuple[str, ...]
    """Without the prefix `patchline.`."""
    webhook: str | None
    """Scheme and host of the address; none if its block was deleted in Prefect's pages."""
    enabled: bool
    """False if it was switched off in Prefect's pages."""


def create(name: str, webhook: str, on: Sequence[str] | None) -> Notification:
    """Create a notification, or change the one of this name.

    Args:
        name: what it is called.
        webhook: the address that gets the POST.
        on: names of events, with or without `patchline.`; none means `DEFAULT_EVENTS`.

    Raises:
        ConfigError: if the name, the address or an event is wrong.
        OrchestrationError: if the server does not answer.
    """
    _check_name(name)
    shown = _scheme_and_host(webhook)
    wanted = sorted({event_name(word) for word in _words(on) or DEFAULT_EVENTS})
    from flows.prefect_client import asking

    with asking() as client:
        automation = _automation(name, wanted, _save_block(name, webhook))
        existing = _find(client, name)
        if existing is None:
            client.create_automation(automation)
        else:
            client.update_automation(existing.id, automation)
            client.resume_automation(existing.id)
    return Notification(name=name, events=_short(wanted), webhook=shown, enabled=True)


def notifications() -> list[Notification]:
    """Return what there is, by name.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    from flows.prefect_client import asking

    with asking() as client:
        return [_described(client, automation) for automation in _all(client)]


def remove(name: str) -> None:
    """Remove a notification with its address.

    Raises:
        ConfigError: if there is none of this name.
        OrchestrationError: if the server does not answer.
    """
    from flows.prefect_client import asking

    with asking() as client:
        existing = _find(client, name)
        if existing is None:
            known = [automation.name.removeprefix(_TITLE) for automation in _all(client)]
            raise ConfigError(f"There is no notification '{name}'. {_nearest(name, known)}")
        client.delete_automation(existing.id)
        block_id = _block_id(existing)
        if block_id is not None:
            _delete_block(client, block_id)


def _words(on: Sequence[str] | None) -> list[str]:
    """Return the events that were asked for, also those with commas between them."""
    return [word.strip() for given in on or () for word in given.split(",") if word.strip()]


def event_name(word: str) -> str:
    """Return the full name of an event.

    Raises:
        ConfigError: if there is no such event.
    """
    full = word if word.startswith(events.PREFIX) else f"{events.PREFIX}{word}"
    if full not in events.KINDS:
        known = _short(events.KINDS)
        raise ConfigError(f"There is no event '{word}'. {_nearest(word, known)}")
    return full


def _nearest(word: str, known: Sequence[str]) -> str:
    """Return a remedy: the nearest name, and all that there are."""
    if not known:
        return "There is none at all yet."
    close = difflib.get_close_matches(word.removeprefix(events.PREFIX), known, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]}? " if close else ""
    return f"{meant}There are {', '.join(known)}."


def _short(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(events.PREFIX) for name in names)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a notification: it has 1 to 60 lower-case letters, "
            "digits or dashes, the first a letter or digit. Choose another one."
        )


def _scheme_and_host(webhook: str) -> str:
    """Return what may be shown of an address.

    Raises:
        ConfigError: if it is no web address; what it says is not repeated, for it may be secret.
    """
    try:
        parts = urlsplit(webhook)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    plain = webhook.isprintable() and not any(sign.isspace() for sign in webhook)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ConfigError(
            "--webhook is not a web address: that begins with http:// or https:// and a host's "
            "name. Give one such as https://example.org/hooks/1."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def _block_name(name: str) -> str:
    return f"patchline-notification-{name}"


def _save_block(name: str, webhook: str) -> UUID:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.types import SecretDict

    block = CustomWebhookNotificationBlock(
        name=name,
        url=f"{{{{{_ADDRESS}}}}}",
        secrets=SecretDict({_ADDRESS: webhook}),
        form_data="{{body}}",
        headers={"content-type": "application/json"},
        timeout=_TIMEOUT_SECONDS,
    )
    saved = block.save(_block_name(name), overwrite=True)
    return UUID(str(saved))


def _automation(name: str, wanted: Sequence[str], block_id: UUID) -> AutomationCore:
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    return AutomationCore(
        name=f"{_TITLE}{name}",
        description="Made by `patchline notify create`; `patchline notify remove` removes it.",
        tags=[_TAG],
        trigger=EventTrigger(
            expect=set(wanted), posture=Posture.Reactive, threshold=1, within=timedelta(0)
        ),
        actions=[SendNotification(block_document_id=block_id, subject=name, body=_BODY)],
    )


def _all(client: SyncPrefectClient) -> list[Automation]:
    found = [automation for automation in client.read_automations() if _TAG in automation.tags]
    return sorted(found, key=lambda automation: automation.name)


def _find(client: SyncPrefectClient, name: str) -> Automation | None:
    return next((each for each in _all(client) if each.name == f"{_TITLE}{name}"), None)


def _block_id(automation: Automation) -> UUID | None:
    ids = [getattr(action, "block_document_id", None) for action in automation.actions]
    return ids[0] if ids else None


def _described(client: SyncPrefectClient, automation: Automation) -> Notification:
    from prefect.events.schemas.automations import EventTrigger

    trigger = automation.trigger
    expected = sorted(trigger.expect) if isinstance(trigger, EventTrigger) else []
    return Notification(
        name=automation.name.removeprefix(_TITLE),
        events=_short(expected),
        webhook=_webhook(client, automation),
        enabled=automation.enabled,
    )


def _webhook(client: SyncPrefectClient, automation: Automation) -> str | None:
    from prefect.exceptions import ObjectNotFound

    block_id = _block_id(automation)
    if block_id is None:
        return None
    try:
        block = client.read_block_document(block_id, include_secrets=True)
        return _scheme_and_host(str(block.data["secrets"][_ADDRESS]))
    except (ObjectNotFound, KeyError, TypeError, ConfigError):
        return None


def _delete_block(client: SyncPrefectClient, block_id: UUID) -> None:
    from prefect.exceptions import ObjectNotFound

    try:
        client.delete_block_document(block_id)
    except ObjectNotFound:
        return  # deleted in Prefect's pages already
