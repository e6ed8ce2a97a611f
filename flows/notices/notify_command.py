"""The commands `patchline notify create`, `list` and `remove`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows import prefect_session

if TYPE_CHECKING:
    from flows.notices.notifications import Notification


def print_created(name: str, *, webhook: str, on: Sequence[str] | None, as_json: bool) -> None:
    """Create a notification, or change the one of this name."""
    with prefect_session.connected():
        from flows.notices import notifications

        created = notifications.create(name, webhook, on)
    if as_json:
        print(created.model_dump_json(indent=2))
    else:
        print(f"{created.name}: a POST to {created.webhook} on {', '.join(created.events)}.")


def print_notifications(*, as_json: bool) -> None:
    """List the notifications; of an address only scheme and host are shown."""
    with prefect_session.connected():
        from flows.notices import notifications

        found = notifications.notifications()
    if as_json:
        content = {"notifications": [each.model_dump(mode="json") for each in found]}
        print(json.dumps(content, indent=2))
    elif not found:
        print("There is no notification. `patchline notify create NAME --webhook URL` makes one.")
    else:
        print("\n".join(_line(each, max(len(each.name) for each in found)) for each in found))


def print_removed(name: str, *, as_json: bool) -> None:
    """Remove a notification."""
    with prefect_session.connected():
        from flows.notices import notifications

        notifications.remove(name)
    if as_json:
        print(json.dumps({"name": name, "removed": True}, indent=2))
    else:
        print(f"{name} is removed.")


def _line(notification: Notification, width: int) -> str:
    address = notification.webhook or "its address is gone: create it again"
    off = "" if notification.enabled else "  (switched off in Prefect's pages)"
    return f"{notification.name:<{width}}  {address}  on {', '.join(notification.events)}{off}"
