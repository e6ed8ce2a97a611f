"""Cells of a table in a message: in one line, and not long."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_SHOWN = 80
_NAMED = 3


def shown(value: str) -> str:
    """Return a cell or the name of a column for a message: in one line, and not long."""
    short = value if len(value) <= _LONGEST_SHOWN else f"{value[: _LONGEST_SHOWN - 1]}…"
    if short.isprintable():
        return short
    escaped = (each.encode("unicode_escape", "surrogatepass").decode() for each in short)
    return "".join(
        each if each.isprintable() else code for each, code in zip(short, escaped, strict=True)
    )


def joined(names: Sequence[str]) -> str:
    """Return some names for a message: `'cat', 'dog' and 'fox'`, or `none`."""
    quoted = [f"'{shown(name)}'" for name in names[:_NAMED]]
    if len(names) > _NAMED:
        return f"{', '.join(quoted)} and {len(names) - _NAMED:,} more"
    if len(quoted) > 1:
        return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    return quoted[0] if quoted else "none"
