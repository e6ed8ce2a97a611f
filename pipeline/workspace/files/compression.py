"""Compressed files: how to recognise and open them, and what reading a damaged one raises."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPRESSIONS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
)
"""The first bytes of compressed files, and what opens each."""
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)
"""What reading a damaged member raises, besides `zipfile.BadZipFile`."""
