"""Check the chunks of a PNG file, drop those that are not pixels, and read all 16 bits.

This module is copied into every packaged model.

Without its text, profiles and private chunks, a file can neither unpack to more memory than its
pixels need nor make a decoder print warnings.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    DeepFile,
    FileValues,
    UndecodableImageError,
    Values,
    orientation_in,
)

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_INTERLACED = 28
"""Where it says whether it is interlaced, the last byte that is asked about."""
_PIECE = 1 << 20
_EDGES = 12  # bytes: length, kind, checksum
_MANY_CHUNKS = 100_000
_GREY, _RGB, _GREY_OPACITY, _RGB_OPACITY = 0, 2, 4, 6
_PNG_SAMPLES = {_GREY: 1, _RGB: 3, _GREY_OPACITY: 2, _RGB_OPACITY: 4}


class PlainPng(NamedTuple):
    """An 8-bit greyscale or RGB image without transparency."""

    data: bytes
    """The file with only the chunks that affect its pixels."""
    width: int
    height: int
    is_grey: bool
    exif: bytes


def plain_png(data: bytes) -> PlainPng | None:
    """Return the file with only its pixels; None if it is another kind or incomplete."""
    width, height, bits, color = _png_header(data)
    if bits != 8 or color not in (_GREY, _RGB) or not width * height:  # noqa: PLR2004 - bits
        return None
    kept, exif = [_SIGNATURE], b""
    try:
        for kind, chunk in _chunks(data, {b"IHDR", b"IDAT", b"IEND", b"eXIf", b"tRNS"}):
            if kind == b"tRNS":
                return None
            if kind == b"eXIf":
                exif = chunk[8:-4]
            else:
                kept.append(chunk)
    except UndecodableImageError:
        return None
    return PlainPng(b"".join(kept), width, height, is_grey=color == _GREY, exif=exif)


def deep_png(data: bytes) -> DeepFile | None:
    """Return a PNG file of 16 bits; None for 8 bits or fewer."""
    width, height, bits, color = _png_header(data)
    if bits != 16 or color not in _PNG_SAMPLES:  # noqa: PLR2004 - bits
        return None
    return DeepFile.of((width, height), _PNG_SAMPLES[color], partial(_png_values, data))


def _png_header(data: bytes) -> tuple[int, int, int, int]:
    """Return width, height, bits and type of colors; zeros if it is no PNG file."""
    if len(data) <= _INTERLACED or not data.startswith(_SIGNATURE) or data[12:16] != b"IHDR":
        return 0, 0, 0, 0
    width, height, bits, color = struct.unpack_from(">IIBB", data, 16)
    return width, height, bits, color


def _png_values(data: bytes) -> FileValues:
    """Return the values of a PNG file of 16 bits.

    Raises:
        UndecodableImageError: if it is damaged.
    """
    plain, noted = [_SIGNATURE], {b"sBIT": b"", b"tRNS": b"", b"eXIf": b""}
    for kind, chunk in _chunks(data, {b"IHDR", b"IDAT", *noted}):
        if kind in noted:
            noted[kind] = chunk[8:-4]
        else:
            plain.append(chunk)
    _check_whole(data, plain[2:])
    plain.append(b"\0\0\0\0IEND\xaeB`\x82")
    decoded: Values | None = cv2.imdecode(
        np.frombuffer(b"".join(plain), np.uint8), cv2.IMREAD_UNCHANGED
    )
    if decoded is None or decoded.dtype != np.uint16:
        raise UndecodableImageError("its packed pixels are damaged or incomplete")
    color = _png_header(data)[3]
    samples_HWN = _in_order(decoded, color)
    colors, significant = 3 if color & _RGB else 1, noted[b"sBIT"]
    if noted[b"tRNS"] and samples_HWN.shape[2] == colors:
        samples_HWN = _with_opacity(samples_HWN, noted[b"tRNS"])
    return FileValues(
        samples_HWN,
        colors,
        opacity="straight" if samples_HWN.shape[2] > colors else "",
        declared=float((1 << max(significant[:colors])) - 1) if significant else 0.0,
        orientation=orientation_in(noted[b"eXIf"]),
    )


def _check_whole(data: bytes, packed: list[bytes]) -> None:
    """Raise an error if pixels are missing, before libpng prints one of its own."""
    if data[_INTERLACED]:
        return
    width, height, _, color = _png_header(data)
    left = height * (1 + 2 * width * _PNG_SAMPLES[color])
    unpacker = zlib.decompressobj()
    try:
        for chunk in packed:
            given = chunk[8:-4]
            while given and left > 0 and not unpacker.eof:
                left -= len(unpacker.decompress(given, _PIECE))
                given = unpacker.unconsumed_tail
    except zlib.error as error:
        raise UndecodableImageError("its packed pixels are damaged") from error
    if left > 0 and left - len(unpacker.flush()) > 0:
        raise UndecodableImageError("the file ends too early")


def _in_order(decoded: Values, color: int) -> Values:
    """Return samples in the file's order; OpenCV turns colors around, and repeats grey ones."""
    whole = decoded[:, :, None] if decoded.ndim == 2 else decoded  # noqa: PLR2004 - H, W
    order = {_GREY: [0], _RGB: [2, 1, 0], _GREY_OPACITY: [0, whole.shape[2] - 1]}
    return np.ascontiguousarray(whole[:, :, order.get(color, [2, 1, 0, 3])])


def _with_opacity(samples_HWN: Values, transparent: bytes) -> Values:
    """Add an opacity: pixels of one color are transparent."""
    count = samples_HWN.shape[2]
    color = np.frombuffer(transparent[: 2 * count], ">u2").astype(np.uint16)
    if len(color) < count:
        return samples_HWN
    opaque = (samples_HWN != color).any(axis=2, keepdims=True)
    return np.concatenate([samples_HWN, opaque.astype(np.uint16) * np.uint16(65535)], axis=2)


def _chunks(data: bytes, kinds: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks of some kinds, with their edges; those that are damaged are an error."""
    at = len(_SIGNATURE)
    for _ in range(_MANY_CHUNKS):
        if at + _EDGES > len(data):
            break
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + _EDGES + length
        if end > len(data):
            break
        if kind in kinds:
            checksum = zlib.crc32(memoryview(data)[at + 4 : end - 4])
            if checksum != int.from_bytes(data[end - 4 : end], "big"):
                raise UndecodableImageError("a checksum of the file is wrong")
            yield kind, data[at:end]
        if kind == b"IEND":
            return
        at = end
    raise UndecodableImageError("the file ends too early")
