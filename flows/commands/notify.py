"""The commands `patchline notify create`, `list` and `remove`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from patchline.flows import prefect_session
from patchline.flows.commands.switches import Json, emit, terminal_lines


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
    with prefect_session.connect():
        from patchline.flows.notifications import webhooks

        created = webhooks.create(name, webhook, on)
    emit(
        created,
        f"{created.name}: posts to {created.webhook} on {', '.join(created.events)}.",
        as_json=as_json,
    )


def list_notifications(*, as_json: Json = False) -> None:
    """List the notifications."""
    with prefect_session.connect():
        from patchline.flows.notifications import webhooks

        notifications = webhooks.read_all()
    lines = terminal_lines("notifications.txt.j2", __package__, notifications=notifications)
    content = {"notifications": [each.model_dump(mode="json") for each in notifications]}
    emit(content, *lines, as_json=as_json)


def remove(name: str, /, *, as_json: Json = False) -> None:
    """Remove a notification.

    Parameters
    ----------
    name
        Name of the notification.
    """
    with prefect_session.connect():
        from patchline.flows.notifications import webhooks

        webhooks.remove(name)
    emit({"name": name, "removed": True}, f"Removed notification '{name}'.", as_json=as_json)
