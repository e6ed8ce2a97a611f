"""The SHA-256 digest of a file, computed in pieces."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from pydantic import Field

from patchline.pipeline.frozen_model import FrozenModel

_PIECE_BYTES = 1 << 20


class FileDigest(FrozenModel):
    """Digest and size of a file's content."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """In hexadecimal digits."""
    bytes: int


def digest_of(file: Path) -> FileDigest:
    """Return the digest and the size of a file."""
    with file.open("rb") as opened:
        return FileDigest(sha256=sha256_of(opened), bytes=os.fstat(opened.fileno()).st_size)


def sha256_of(opened: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an opened file, which is read in pieces."""
    digest = hashlib.sha256()
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
