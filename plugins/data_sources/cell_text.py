"""Cells of a table in a message: in one line, and not long."""

from __future__ import annotations

_LONGEST_SHOWN = 80


def shown(value: str) -> str:
    """Return a cell or the name of a column for a message: in one line, and not long."""
    short = value if len(value) <= _LONGEST_SHOWN else f"{value[: _LONGEST_SHOWN - 1]}…"
    if short.isprintable():
        return short
    escaped = (each.encode("unicode_escape", "surrogatepass").decode() for each in short)
    return "".join(
        each if each.isprintable() else code for each, code in zip(short, escaped, strict=True)
    )
