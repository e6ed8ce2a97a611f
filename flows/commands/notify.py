"""The commands `patchline notify create`, `list` and `remove`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from patchline.flows import prefect_session
from patchline.flows.commands.switches import Json

if TYPE_CHECKING:
    from patchline.flows.notifications.webhooks import Notification


def create(
    name: str,
    /,
    *,
    webhook: Annotated[str, Parameter(env_var="PATCHLINE_WEBHOOK")],
    on: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: Json = False,
) -> None:
    """Create or update a notification: events are posted as JSON to a webhook.

    Parameters
    ----------
    name
        Name of the notification.
    webhook
        URL that receives a POST request with a JSON object; stored as a secret. Other users of the
        machine can read this flag while the command runs, but not the environment variable
        PATCHLINE_WEBHOOK.
    on
        Event to send, such as run.failed; repeatable. Default: failures, promotions and refusals.
    """
    with prefect_session.connected():
        from patchline.flows.notifications import webhooks

        created = webhooks.create(name, webhook, on)
    if as_json:
        print(created.model_dump_json(indent=2))
    else:
        print(f"{created.name}: posts to {created.webhook} on {', '.join(created.events)}.")


def list_notifications(*, as_json: Json = False) -> None:
    """List the notifications."""
    with prefect_session.connected():
        from patchline.flows.notifications import webhooks

        notifications = webhooks.read_all()
    if as_json:
        content = {"notifications": [each.model_dump(mode="json") for each in notifications]}
        print(json.dumps(content, indent=2))
    elif not notifications:
        print("No notifications yet. Create one with `patchline notify create NAME --webhook URL`.")
    else:
        print(
            "\n".join(
                _line(each, max(len(each.name) for each in notifications)) for each in notifications
            )
        )


def remove(name: str, /, *, as_json: Json = False) -> None:
    """Remove a notification.

    Parameters
    ----------
    name
        Name of the notification.
    """
    with prefect_session.connected():
        from patchline.flows.notifications import webhooks

        webhooks.remove(name)
    if as_json:
        print(json.dumps({"name": name, "removed": True}, indent=2))
    else:
        print(f"Removed notification '{name}'.")


def _line(notification: Notification, width: int) -> str:
    address = notification.webhook or "URL deleted, create it again"
    off = "" if notification.enabled else "  (switched off in the Prefect UI)"
    return f"{notification.name:<{width}}  {address}  on {', '.join(notification.events)}{off}"
