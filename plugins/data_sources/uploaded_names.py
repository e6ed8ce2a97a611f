"""File names as Label Studio stores uploaded images: a random part, then the name made safe.

`my photo (1).jpg` becomes `0a1b2c3d-my_photo_1.jpg`: spaces are underscores, and what is neither a
letter, a digit, `-`, `_` nor `.` is left out (Django's `get_valid_filename`).
"""

from __future__ import annotations

import re
from unicodedata import normalize

_UPLOADED = re.compile(r"[0-9a-f]{8}-(?P<name>.+)")
_LEFT_OUT = re.compile(r"[^-\w.]")


def original_name(name: str) -> str:
    """Return the part of a stored file name that its image had, made safe; empty if it has none."""
    uploaded = _UPLOADED.fullmatch(name)
    return stored_name(uploaded["name"]) if uploaded else ""


def stored_name(name: str) -> str:
    """Return what becomes of the name of a file that is uploaded, without upper case."""
    safe = normalize("NFC", name).strip().replace(" ", "_")
    return _LEFT_OUT.sub("", safe).casefold()
