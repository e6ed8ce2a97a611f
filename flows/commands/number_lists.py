"""Settings of one or three numbers on the command line: `--data.bands 4 3 2`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

_FLAGS = {"--data.bands", "--data.mean", "--data.std"}
_MOST = 3


def each_with_its_flag(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the flag repeated before each of its numbers, as cyclopts takes them.

    A number that does not directly follow belongs to something else.
    """
    return list(_repeated(arguments))


def _repeated(arguments: Sequence[str]) -> Iterator[str]:
    flag, left = "", 0
    for place, argument in enumerate(arguments):
        if argument == "--":
            yield from arguments[place:]
            return
        if argument in _FLAGS:
            flag, left = argument, _MOST
        elif not left or not _is_number(argument):
            flag, left = "", 0
        else:
            if left < _MOST:
                yield flag
            left -= 1
        yield argument


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
