"""What a name of an image in a table or an export may mean: a path, or the path in an address.

A name is first what is written. It is decoded, once, only if nothing has that name.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")
_LOCAL = "?d="
"""What Label Studio writes before the path of a local file."""


class Readings(NamedTuple):
    """The paths that a name may mean, with forward slashes, the likeliest first."""

    written: list[str]
    ends: list[str]
    """Those that another path may end with."""
    decoded: list[str]


def readings(name: str) -> Readings:
    """Return what a name may mean."""
    plain = name.strip()
    _, local, place = plain.rpartition(_LOCAL)
    address = ADDRESS.match(plain)
    if local:
        ends = [place]
    elif address or plain.startswith("/data/"):
        path = plain[address.end() :] if address else plain
        bare = re.split("[?#]", path, maxsplit=1)[0]
        ends = [bare] if "/" in path[len(bare) :] else [path, bare]
    else:
        ends = [plain.replace("\\", "/")]
    written = _distinct([name, plain, *ends])
    decoded = _distinct([*map(unquote, ends), *([unquote_plus(place)] if local else [])])
    return Readings(written, _distinct(ends), [each for each in decoded if each not in written])


def _distinct(paths: list[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if path.strip() and "\0" not in path]
