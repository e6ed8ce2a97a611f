"""What a notification may be: its name, its events and its webhook URL, which is a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from patchline.flows.notifications import event_kinds
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system.tools import tools

DEFAULT_EVENTS = (
    event_kinds.RUN_FAILED,
    event_kinds.RUN_KILLED,
    event_kinds.MODEL_PROMOTED,
    event_kinds.MODEL_REFUSED,
)
"""The events of a notification that names none, besides those of tools."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


class Notification(FrozenModel):
    """A notification as it is shown, without the secret parts of its URL."""

    name: str
    events: tuple[str, ...]
    """Without the prefix `patchline.`."""
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


def chosen_events(on: Sequence[str] | None) -> list[str]:
    """Return the full, sorted event names for what `--on` was given, or the default events.

    Raises:
        ConfigError: if there is no such event.
    """
    defaults = (*DEFAULT_EVENTS, *(each.name for each in tools().events() if each.is_default))
    words = [word.strip() for given in on or () for word in given.split(",")]
    return sorted({_event_name(word) for word in words if word} or defaults)


def short_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return event names without their prefix."""
    return tuple(name.removeprefix(event_kinds.PREFIX) for name in names)


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
    word = word.removeprefix(event_kinds.PREFIX)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]}? " if close else ""
    return f"{meant}Choose from: {', '.join(names)}."


def _event_name(word: str) -> str:
    full = event_kinds.PREFIX + word.removeprefix(event_kinds.PREFIX)
    if full not in event_kinds.kinds():
        names = short_names(event_kinds.kinds())
        raise ConfigError(f"There is no event '{word}'. {nearest(word, names)}")
    return full
