"""What a file holds, as a digest that is computed piece by piece."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from pipeline.data.decoding import UndecodableImageError
from pipeline.data.image_file import open_regular

_PIECE_BYTES = 1 << 20


def sha256_of(opened: BinaryIO) -> str:
    """Return the SHA-256 in hexadecimal digits of what is left to read of an opened file."""
    digest = hashlib.sha256()
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def holds(file: Path, sha256: str) -> bool:
    """Return whether a regular file exists and has that SHA-256 in hexadecimal digits."""
    try:
        with open_regular(file) as opened:
            return sha256_of(opened) == sha256
    except (OSError, UndecodableImageError):
        return False
