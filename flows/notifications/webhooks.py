"""Notifications: Prefect posts Patchline's events as JSON to a webhook.

Each notification is an automation, so the Prefect UI shows it. The functions expect that Prefect's
settings name a server; `prefect_session.connected` takes care of that.

The action is `SendNotification` with a custom webhook block, not `CallWebhook` with a webhook
block. In Prefect 3.8 all webhook blocks share one connection pool, and each call closes the pool
when it ends, even while another call is using it, so messages are lost. A response such as 500 also
counts as delivered. The custom block has its own connection, and retries a failed call three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict

from patchline.flows.notifications import notification as notifications
from patchline.flows.notifications.notification import Notification
from patchline.flows.prefect_api.prefect_client import asking
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workers.host import proxies

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
        name: of the notification.
        webhook: the URL that receives the POST.
        on: event names, with or without `patchline.`; none means the default events.

    Raises:
        ConfigError: if the name, the URL or an event is wrong.
        OrchestrationError: if the server does not answer, or the proxy for the URL cannot be used.
    """
    notifications.check_name(name)
    shown = notifications.scheme_and_host(webhook)
    proxies.check_proxy(webhook)
    chosen = notifications.chosen_events(on)
    with asking() as client:
        automation = _automation(name, chosen, _save_block(name, webhook))
        existing = _find(client, name)
        if existing is None:
            client.create_automation(automation)
        else:
            client.update_automation(existing.id, automation)
            client.resume_automation(existing.id)
    names = notifications.short_names(chosen)
    return Notification(name=name, events=names, webhook=shown, enabled=True)


def read_all() -> list[Notification]:
    """Return the notifications, sorted by name.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        return [_described(client, automation) for automation in _all(client)]


def remove(name: str) -> None:
    """Remove a notification and its stored URL.

    Raises:
        ConfigError: if there is none with this name.
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        existing = _find(client, name)
        if existing is None:
            names = [automation.name.removeprefix(_TITLE) for automation in _all(client)]
            hint = notifications.nearest(name, names)
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


def _described(client: SyncPrefectClient, automation: Automation) -> Notification:
    trigger = automation.trigger
    expected = sorted(trigger.expect) if isinstance(trigger, EventTrigger) else []
    return Notification(
        name=automation.name.removeprefix(_TITLE),
        events=notifications.short_names(expected),
        webhook=_shown_webhook(client, automation),
        enabled=automation.enabled,
    )


def _shown_webhook(client: SyncPrefectClient, automation: Automation) -> str | None:
    block_id = _block_id(automation)
    if block_id is None:
        return None
    try:
        block = client.read_block_document(block_id, include_secrets=True)
        return notifications.scheme_and_host(str(block.data["secrets"][_ADDRESS]))
    except (ObjectNotFound, KeyError, TypeError, ConfigError):
        return None
