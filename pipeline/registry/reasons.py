"""Reasons that people give, as one line of plain text for the history."""

from __future__ import annotations

from patchline.pipeline.errors import ConfigError

LONGEST_REASON = 500
"""Characters."""


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def checked_reason(text: str | None) -> str | None:
    """Return a reason on one line; none if none was given.

    Raises:
        ConfigError: if it is too long.
    """
    if text is None:
        return None
    reason = one_line(text)
    if len(reason) > LONGEST_REASON:
        raise ConfigError(
            f"The reason has {len(reason)} characters, more than the maximum of {LONGEST_REASON}; "
            "shorten it."
        )
    return reason
