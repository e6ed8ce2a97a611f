"""Whether a file still holds what it held."""

from __future__ import annotations

import hashlib
from pathlib import Path


def holds(file: Path, sha256: str) -> bool:
    """Return whether a file exists and has that SHA-256 in hexadecimal digits."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == sha256
    except OSError:
        return False
