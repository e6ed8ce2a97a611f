"""Files of JSON objects, one a line, of which a killed process may leave a line unfinished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class WholeLine(NamedTuple):
    """A line that has an end."""

    number: int
    """Counted from 1."""
    content: dict[str, Any] | None
    """None if it is cut off: the rest of a line that a killed process has begun."""


class DamagedLineError(ValueError):
    """A line is no JSON object, and no process can have left it so; the text says which and why."""


def whole_lines(content: bytes, first: int = 1) -> Iterator[WholeLine]:
    """Yield the lines that have an end, without blank ones.

    Args:
        content: of a file, or what was appended to it.
        first: number of its first line.

    Raises:
        DamagedLineError: at the first damaged line.
    """
    for number, line in enumerate(content.split(b"\n")[:-1], first):
        text = line.strip()
        if not text:
            continue
        if text.startswith(b"{") and not text.endswith(b"}"):
            yield WholeLine(number, None)
            continue
        try:
            read = json.loads(text)
        except UnicodeDecodeError:
            raise DamagedLineError(f"line {number} is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            if text.startswith(b"{") and _ends_early(error):
                yield WholeLine(number, None)
                continue
            raise DamagedLineError(f"line {number} is not JSON") from None
        if not isinstance(read, dict):
            raise DamagedLineError(f"line {number} is not a JSON object")
        yield WholeLine(number, read)


def _ends_early(error: Exception) -> bool:
    """Return whether only the rest of a line was missing: it was cut off behind an inner brace."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(error.doc) or error.msg.startswith("Unterminated string")
    )


def objects(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of the lines that have an end, in a file that is never repaired.

    Nothing follows the line that a killed process has begun in such a file.

    Raises:
        DamagedLineError: at the first line that is damaged or cut off.
    """
    for number, line in whole_lines(content):
        if line is None:
            raise DamagedLineError(f"line {number} is cut off")
        yield number, line
