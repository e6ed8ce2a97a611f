"""Read all 16 bits of PNG files.

This module is copied into every packaged model.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues, Values
from patchline.pipeline.data.pixel_values.undecodable import UndecodableImageError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTH, _COLOR, _INTERLACED = 24, 25, 28
"""Where the number of bits, the color type, and whether it is interlaced are."""
_PIECE = 1 << 20
_EDGES = 12  # bytes: length, kind, checksum
_KEPT, _READ = {b"IHDR", b"IDAT"}, {b"IHDR", b"IDAT", b"sBIT", b"tRNS"}
_GREY, _RGB, _GREY_OPACITY, _RGB_OPACITY = 0, 2, 4, 6
_PNG_SAMPLES = {_GREY: 1, _RGB: 3, _GREY_OPACITY: 2, _RGB_OPACITY: 4}


class DeepPng(NamedTuple):
    """What the header of a PNG file of 16 bits states."""

    width: int
    height: int
    samples: int
    """Per pixel."""


def deep_png(data: bytes) -> DeepPng | None:
    """Return what the header states; None for a PNG file of 8 bits or fewer."""
    if len(data) <= _INTERLACED or not data.startswith(_SIGNATURE) or data[_DEPTH] != 16:  # noqa: PLR2004
        return None
    width, height = struct.unpack_from(">II", data, 16)
    samples = _PNG_SAMPLES.get(data[_COLOR])
    return DeepPng(width, height, samples) if samples else None


def png_values(data: bytes, orientation: int) -> FileValues:
    """Return the values of a PNG file of 16 bits.

    Args:
        data: the file.
        orientation: as in EXIF.

    Raises:
        UndecodableImageError: if it is damaged.
    """
    plain, significant, transparent = [_SIGNATURE], b"", b""
    for kind, chunk in _chunks(data):
        if kind in _KEPT:
            plain.append(chunk)
        significant = chunk[8:-4] if kind == b"sBIT" else significant
        transparent = chunk[8:-4] if kind == b"tRNS" else transparent
    _check_whole(data, plain[2:])
    plain.append(b"\0\0\0\0IEND\xaeB`\x82")
    color = data[_COLOR]
    decoded: Values | None = cv2.imdecode(
        np.frombuffer(b"".join(plain), np.uint8), cv2.IMREAD_UNCHANGED
    )
    if decoded is None or decoded.dtype != np.uint16:
        raise UndecodableImageError("its packed pixels are damaged or incomplete")
    samples_HWN = _in_order(decoded, color)
    if transparent and color in (_GREY, _RGB):
        samples_HWN = _with_opacity(samples_HWN, transparent)
    colors = 3 if color in (_RGB, _RGB_OPACITY) else 1
    return FileValues(
        samples_HWN,
        colors,
        opacity="straight" if samples_HWN.shape[2] > colors else "",
        declared=float((1 << max(significant[:colors])) - 1) if significant else 0.0,
        orientation=orientation,
    )


def _check_whole(data: bytes, packed: list[bytes]) -> None:
    """Raise an error if pixels are missing, before libpng prints one of its own."""
    header = deep_png(data)
    if header is None or data[_INTERLACED]:
        return
    left = header.height * (1 + 2 * header.width * header.samples)
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


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks that matter, with their edges; those that are damaged are an error."""
    at, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        if at + _EDGES > len(data):
            raise UndecodableImageError("the file ends too early")
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + _EDGES + length
        if end > len(data):
            raise UndecodableImageError("the file ends too early")
        if kind in _READ:
            checksum = zlib.crc32(memoryview(data)[at + 4 : end - 4])
            if checksum != int.from_bytes(data[end - 4 : end], "big"):
                raise UndecodableImageError("a checksum of the file is wrong")
            yield kind, data[at:end]
        at = end
