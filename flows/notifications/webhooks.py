"""Notifications: Prefect posts Patchline's events as JSON to a webhook.

Each notification is an automation, so the Prefect UI shows it. The functions expect that Prefect's
settings name a server; `prefect_session.connect` takes care of that.

The action is `SendNotification` with a custom webhook block, not `CallWebhook` with a webhook
block. In Prefect 3.8 all webhook blocks share one connection pool, and each call closes the pool
when it ends, even while another call is using it, so messages are lost. A response such as 500 also
counts as delivered. The custom block has its own connection, and retries a failed call three times.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict

from patchline.flows.notifications import events
from patchline.flows.prefect_api.prefect_client import open_client
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.workers.host import environment_variables

DEFAULT_EVENTS = (
    events.RUN_FAILED,
    events.RUN_KILLED,
    events.MODEL_PROMOTED,
    events.MODEL_REFUSED,
)
"""The events of a notification that names none, besides those of tools."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


class Notification(FrozenModel):
    """A notification as it is shown, without the secret parts of its URL."""

    name: str
    events: tuple[str, ...]
    """Names of the events, without the prefix `patchline.`."""
    webhook: str | None
    """Scheme and host of the URL; none if its block was deleted in the Prefect UI."""
    enabled: bool
    """False if it was switched off in the Prefect UI."""


def check_name(name: str) -> None:
    """Refuse a name that Prefect's block of the webhook could not have.

    Raises:
        ConfigError: if the name is too long or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a notification: use 1 to 60 lower-case letters, "
            "digits and dashes, starting with a letter or digit."
        )


def choose_events(on: Sequence[str] | None) -> list[str]:
    """Return the full, sorted event names for what `--on` was given, or the default events.

    Raises:
        ConfigError: if there is no such event.
    """
    defaults = (*DEFAULT_EVENTS, *(each.name for each in tools().events() if each.is_default))
    words = [word.strip() for given in on or () for word in given.split(",")]
    return sorted({_event_name(word) for word in words if word} or defaults)


def short_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return event names without their prefix."""
    return tuple(name.removeprefix(events.PREFIX) for name in names)


def scheme_and_host(webhook: str) -> str:
    """Return the part of a URL that is no secret.

    Raises:
        ConfigError: if it is not a web address; the message does not repeat it.
    """
    try:
        parts = urlsplit(webhook)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    plain = webhook.isprintable() and not any(sign.isspace() for sign in webhook)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ConfigError(
            "--webhook is not a web address: it must start with http:// or https:// and a host "
            "name. Give one such as https://example.org/hooks/1."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def nearest(word: str, names: Sequence[str]) -> str:
    """Return the remedy for an unknown name: the closest one, and all that exist."""
    if not names:
        return "No notifications exist yet."
    word = word.removeprefix(events.PREFIX)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]}? " if close else ""
    return f"{meant}Choose from: {', '.join(names)}."


def _event_name(word: str) -> str:
    full = events.PREFIX + word.removeprefix(events.PREFIX)
    if full not in events.kinds():
        names = short_names(events.kinds())
        raise ConfigError(f"There is no event '{word}'. {nearest(word, names)}")
    return full


_TITLE = "Patchline notification: "
_TAG = "patchline.notification"
_ADDRESS = "address"
_TIMEOUT_SECONDS = 5.0
_BODY = """\
{"event": {{ event.event | tojson }},
 "resource": {{ event.resource.id | tojson }},
 "time": {{ event.occurred.isoformat() | tojson }},
 "sentence": {{ (event.payload.sentence or event.event) | tojson }},
 "text": {{ (event.payload.sentence or event.event) | tojson }},
 "payload": {{ event.payload | tojson }},
 "id": {{ event.id | string | tojson }}}
"""
"""Chat programs show `text`; `id` tells a repeated message from a new event."""


def create(name: str, webhook: str, on: Sequence[str] | None) -> Notification:
    """Create a notification, or update the one with this name.

    Args:
        name: the name of the notification, new or existing.
        webhook: the URL that receives the POST.
        on: event names, with or without `patchline.`; none means the default events.

    Raises:
        ConfigError: if the name, the URL or an event is wrong.
        OrchestrationError: if the server does not answer, or the proxy for the URL cannot be used.
    """
    check_name(name)
    shown = scheme_and_host(webhook)
    environment_variables.check_proxy(webhook)
    chosen = choose_events(on)
    with open_client() as client:
        automation = _automation(name, chosen, _save_block(name, webhook))
        existing = _find(client, name)
        if existing is None:
            client.create_automation(automation)
        else:
            client.update_automation(existing.id, automation)
            client.resume_automation(existing.id)
    names = short_names(chosen)
    return Notification(name=name, events=names, webhook=shown, enabled=True)


def read_all() -> list[Notification]:
    """Return the notifications, sorted by name.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        return [_describe(client, automation) for automation in _all(client)]


def remove(name: str) -> None:
    """Remove a notification and its stored URL.

    Raises:
        ConfigError: if there is none with this name.
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        existing = _find(client, name)
        if existing is None:
            names = [automation.name.removeprefix(_TITLE) for automation in _all(client)]
            hint = nearest(name, names)
            raise ConfigError(f"There is no notification '{name}'. {hint}")
        client.delete_automation(existing.id)
        if block_id := _block_id(existing):
            try:
                client.delete_block_document(block_id)
            except ObjectNotFound:
                return  # already deleted in the Prefect UI


def _save_block(name: str, webhook: str) -> UUID:
    block = CustomWebhookNotificationBlock(
        name=name,
        url=f"{{{{{_ADDRESS}}}}}",
        secrets=SecretDict({_ADDRESS: webhook}),
        form_data="{{body}}",
        headers={"content-type": "application/json"},
        timeout=_TIMEOUT_SECONDS,
    )
    return UUID(str(block.save(f"patchline-notification-{name}", overwrite=True)))


def _automation(name: str, chosen: Sequence[str], block_id: UUID) -> AutomationCore:
    return AutomationCore(
        name=f"{_TITLE}{name}",
        description="Created by `patchline notify create`; `patchline notify remove` removes it.",
        tags=[_TAG],
        trigger=EventTrigger(
            expect=set(chosen), posture=Posture.Reactive, threshold=1, within=timedelta(0)
        ),
        actions=[SendNotification(block_document_id=block_id, subject=name, body=_BODY)],
    )


def _all(client: SyncPrefectClient) -> list[Automation]:
    webhooks = [automation for automation in client.read_automations() if _TAG in automation.tags]
    return sorted(webhooks, key=lambda automation: automation.name)


def _find(client: SyncPrefectClient, name: str) -> Automation | None:
    return next((each for each in _all(client) if each.name == f"{_TITLE}{name}"), None)


def _block_id(automation: Automation) -> UUID | None:
    ids = [getattr(action, "block_document_id", None) for action in automation.actions]
    return ids[0] if ids else None


def _describe(client: SyncPrefectClient, automation: Automation) -> Notification:
    trigger = automation.trigger
    expected = sorted(trigger.expect) if isinstance(trigger, EventTrigger) else []
    return Notification(
        name=automation.name.removeprefix(_TITLE),
        events=short_names(expected),
        webhook=_read_shown_webhook(client, automation),
        enabled=automation.enabled,
    )


def _read_shown_webhook(client: SyncPrefectClient, automation: Automation) -> str | None:
    block_id = _block_id(automation)
    if block_id is None:
        return None
    try:
        block = client.read_block_document(block_id, include_secrets=True)
        return scheme_and_host(str(block.data["secrets"][_ADDRESS]))
    except (ObjectNotFound, KeyError, TypeError, ConfigError):
        return None
