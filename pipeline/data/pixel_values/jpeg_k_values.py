"""Read all bits of JPEG 2000 files, and refuse JPEG files of more than 8 bits.

This module is copied into every packaged model. OpenCV reads them (ISO/IEC 15444-1, A.5.1 and
I.5.3). What it does not read with all of its bits, such as colors of half the resolution, is
reduced to 8 bits by Pillow.
"""

from __future__ import annotations

import io
import math
import struct
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    DeepFile,
    FileValues,
    UndecodableImageError,
    Values,
)

_START = b"\xff\x4f\xff\x51"
_FIELDS = ">HHIIIIIIIIH"
_SIGNED = 0x80
_SIXTEEN = 16
_ONE, _THREE, _FOUR = 1, 3, 4
_SRGB = 16
"""Number of the color space in the box `colr`."""
_CHANNEL_KINDS = {1: "straight", 2: "associated"}
"""Types of a channel in the box `cdef`."""
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_JPEG_LS, _SCAN = 0xF7, 0xDA


class _Frame(NamedTuple):
    start: int
    width: int
    height: int
    components: tuple[tuple[int, int, int], ...]
    """The bits of each, with the sign, and the steps between its columns and its rows."""

    @property
    def bits(self) -> int:
        return max((depth & ~_SIGNED for depth, _, _ in self.components), default=0) + 1


def deep_jpeg(data: bytes) -> DeepFile | None:
    """Return a file of more than 8 bits; None if it has fewer, or is reduced to 8 bits.

    Raises:
        UndecodableImageError: if its values have a sign, or more than 16 bits.
    """
    frame = _frame(data)
    if frame is None:
        return None
    if any(depth & _SIGNED for depth, _, _ in frame.components):
        raise UndecodableImageError("its values have a sign, which is not read; save it as TIFF")
    if frame.bits > _SIXTEEN:
        raise UndecodableImageError(
            f"its samples have {frame.bits} bits, and at most 16 are read; save it as TIFF"
        )
    samples = len(frame.components)
    if frame.bits <= 8 or not _is_read_whole(data, frame):  # noqa: PLR2004 - bits
        return None
    return DeepFile.of((frame.width, frame.height), samples, partial(_jpeg_values, data, frame))


def jpeg_bits(data: bytes) -> int:
    """Return the bits per color that the header of a JPEG 2000 file states; 0 without one."""
    frame = _frame(data)
    return frame.bits if frame else 0


def check_jpeg(data: bytes) -> None:
    """Refuse a JPEG file that no usual decoder reads.

    Raises:
        UndecodableImageError: if its samples have more than 8 bits, or it is JPEG-LS.
    """
    at = 2
    while at + 5 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004 - a marker
        marker, bits = data[at + 1], data[at + 4]
        if marker == _JPEG_LS or (marker in _FRAMES and bits > 8):  # noqa: PLR2004 - bits
            kind = "JPEG-LS" if marker == _JPEG_LS else f"JPEG with {bits} bits per sample"
            raise UndecodableImageError(
                f"{kind} needs a decoder of its own (imagecodecs, GDCM); save it as 16-bit PNG or "
                "as TIFF"
            )
        if marker in _FRAMES or marker == _SCAN:
            return
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _jpeg_values(data: bytes, frame: _Frame) -> FileValues:
    """Return the values of a file.

    Raises:
        UndecodableImageError: if it is damaged, or its bits cannot be read.
    """
    with Image.open(io.BytesIO(data), formats=("JPEG2000",)) as opened:
        opened.load()  # says what is damaged, without printing as OpenCV does
    decoded: Values | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    samples = len(frame.components)
    shape = frame.height, frame.width, samples
    if decoded is None or decoded.size != math.prod(shape) or decoded.dtype != np.uint16:
        raise UndecodableImageError(
            f"its {frame.bits} bits cannot be read; save it as 16-bit PNG or as TIFF"
        )
    samples_HWN = decoded.reshape(shape)
    if samples > _ONE:
        samples_HWN = np.ascontiguousarray(samples_HWN[:, :, [2, 1, 0, 3][:samples]])
    return FileValues(
        samples_HWN,
        min(samples, _THREE),
        opacity=_read_opacity(data[: frame.start]) if samples == _FOUR else "",
        declared=float((1 << frame.bits) - 1),
    )


def _frame(data: bytes) -> _Frame | None:
    at = data.find(_START, 0, 1 << 16)
    try:
        if at < 0:
            return None
        fields = struct.unpack_from(_FIELDS, data, at + len(_START))
        place = at + len(_START) + struct.calcsize(_FIELDS)
        components = tuple(struct.iter_unpack("BBB", data[place : place + 3 * fields[-1]]))
    except struct.error:
        return None
    return _Frame(at, fields[2] - fields[4], fields[3] - fields[5], components)


def _is_read_whole(data: bytes, frame: _Frame) -> bool:
    """Return whether all bits can be read: of grey, and of plain RGB."""
    samples, head = len(frame.components), data[: frame.start]
    if samples == _ONE:
        return True
    color = _box(head, b"colr")
    return (
        samples in (_THREE, _FOUR)
        and len({depth for depth, _, _ in frame.components}) == 1
        and all(steps == [1, 1] for _, *steps in frame.components)
        and b"pclr" not in head
        and (color is None or color[0] != 1 or color[3:7] == _SRGB.to_bytes(4, "big"))
    )


def _read_opacity(head: bytes) -> str:
    """Return how the fourth channel is stored, if the file declares it as opacity of all others."""
    channels = _box(head, b"cdef")
    if channels is None:
        return ""
    described = struct.iter_unpack(">HHH", channels[2 : 2 + 6 * ((len(channels) - 2) // 6)])
    kinds = {channel: kind for channel, kind, _ in described}
    return _CHANNEL_KINDS.get(kinds.get(_THREE, 0), "")


def _box(head: bytes, kind: bytes) -> bytes | None:
    """Return the content of a box of the header; None if it is not there."""
    at = head.find(kind)
    if at < 4:  # noqa: PLR2004 - its length comes first
        return None
    length = int.from_bytes(head[at - 4 : at], "big")
    content = head[at + 4 : at - 4 + length]
    return content if len(content) > 2 else None  # noqa: PLR2004 - shorter ones say nothing
