"""The digest of a file: what it held, to be compared with what it holds."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from pipeline.section import Section

_PIECE_BYTES = 1 << 20


class FileDigest(Section):
    """What a file held at some moment."""

    sha256: str
    """In hexadecimal digits."""
    bytes: int


def digest_of(file: Path) -> FileDigest:
    """Return the digest and the size of a file."""
    with file.open("rb") as opened:
        return FileDigest(sha256=sha256_of(opened), bytes=os.fstat(opened.fileno()).st_size)


def sha256_of(opened: BinaryIO) -> str:
    """Return the SHA-256 of what is left to read of an opened file, which is read in pieces."""
    digest = hashlib.sha256()
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
