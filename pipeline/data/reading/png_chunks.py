"""Check the chunks of a PNG file, and drop those that are not pixels.

Without its text, profiles and private chunks, a file can neither unpack to more memory than its
pixels need nor make a decoder print warnings.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = (b"IHDR", b"IDAT", b"IEND", b"eXIf")
"""Pixels and the EXIF orientation."""
_PNG_CHUNK_EDGES = 12  # bytes: length, kind, checksum
_PNG_MANY_CHUNKS = 100_000


class PlainPng(NamedTuple):
    """An 8-bit greyscale or RGB image without transparency."""

    data: bytes
    """The file with only the chunks that affect its pixels."""
    width: int
    height: int
    is_grey: bool


def plain_png(data: bytes) -> PlainPng | None:
    """Return the file with only its pixels; None if it is another kind or incomplete."""
    if not data.startswith(_PNG_SIGNATURE):
        return None
    at, kept, kind = len(_PNG_SIGNATURE), [_PNG_SIGNATURE], b""
    for _ in range(_PNG_MANY_CHUNKS):
        if kind == b"IEND" or at + _PNG_CHUNK_EDGES > len(data):
            break
        length = int.from_bytes(data[at : at + 4], "big")
        kind, end = data[at + 4 : at + 8], at + _PNG_CHUNK_EDGES + length
        if kind == b"tRNS" or end > len(data):
            return None
        if kind in _PNG_KEPT:
            checksum = zlib.crc32(memoryview(data)[at + 4 : end - 4])
            if checksum != int.from_bytes(data[end - 4 : end], "big"):
                return None
            kept.append(data[at:end])
        at = end
    if kind != b"IEND" or kept[1][4:8] != b"IHDR":
        return None
    width, height, bits, colour, *_ = struct.unpack(">IIBBBBB", kept[1][8:21])
    if bits != 8 or colour not in (0, 2) or not width * height:  # noqa: PLR2004 - grey and RGB
        return None
    return PlainPng(b"".join(kept), width, height, is_grey=colour == 0)
