"""Check whether a JPEG file contains all of its pixels.

JPEG decoders silently fill in missing data, so half a file with an end marker looks complete to
them. Two checks detect that, and neither depends on the content of the picture:

- One scan: decode the picture as if it were two rows of blocks higher, at an eighth of its size.
  The data must end at the first block beyond the picture: a decoder produces that block only if it
  had data for all blocks before it.
- Several scans, or an inconclusive first block: check that all scans are there, and that the
  picture stays the same whatever follows the data.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

_JPEG_IN_DATA = frozenset({0x00, *range(0xD0, 0xD8)})
"""What follows 0xFF within the data: a stuffed byte, or a restart marker."""
_JPEG_SOF = {0xC0, 0xC1, 0xC2}
"""Baseline, extended and progressive, all with Huffman codes."""
_JPEG_OTHER_SOF = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_JPEG_SOS, _JPEG_EOI, _JPEG_DRI, _JPEG_PROGRESSIVE = 0xDA, 0xD9, 0xDD, 0xC2
_JPEG_APP1, _EXIF = 0xE1, b"Exif\0\0"
_JPEG_BLOCK, _JPEG_COEFFICIENTS, _JPEG_BITS = 8, 64, 8
_NOTHING_LEFT = bytes(_JPEG_COEFFICIENTS)
_EVERYTHING_LEFT = b"\xff" * _JPEG_COEFFICIENTS
_JPEG_MOST_PIXELS = 65_400
"""On a side, that leave room for two more rows of blocks."""
_JPEG_FOLLOWING = bytes((37 * number + 170) % 251 for number in range(512))
"""Replaces the end marker in a check; its first bit differs from what decoders fill in."""


Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class JpegFrame(NamedTuple):
    """The properties that the markers of a JPEG file state."""

    width: int
    height: int
    height_at: int
    """Offset of the height in the file."""
    block_columns: int
    """Blocks of 8 pixels beside each other in a coded unit, of the first component."""
    unit_rows: int
    """Pixel rows of a coded unit."""
    unit_columns: int
    """Pixel columns of a coded unit."""
    components: int
    """1 for greyscale, 3 for color, 4 for CMYK."""
    scans: int
    complete: bool
    """Whether the scans bring every coefficient of every component to its last bit."""
    luma_last: bool
    """Whether the last scan has only the first component."""
    restarts: bool
    data_start: int
    """Offset of the last scan's data in the file."""
    data_end: int
    """Offset at which the last scan's data ends and the end marker begins."""
    exif: bytes


def jpeg_frame(data: bytes) -> JpegFrame | None:
    """Return what the markers say; None if they are unusual, or the coding is a rare one.

    Raises:
        ValueError: if the file ends before its end marker.
    """
    try:
        return _jpeg_frame(data)
    except (IndexError, ValueError) as error:
        raise ValueError("the file is truncated") from error


def lacks_data(data: bytes, frame: JpegFrame) -> bool:
    """Return whether a part of the picture is missing between the markers of a JPEG file.

    Raises:
        Exception: whatever Pillow raises when it cannot decode the file.
    """
    if not frame.complete:
        return True
    if frame.scans == 1 and max(frame.height, frame.width) <= _JPEG_MOST_PIXELS:
        whole = _reaches_the_end(data, frame)
        if whole is not None:
            return not whole
    mode = "L" if frame.luma_last else None
    end = data[: frame.data_end]
    usual = _decode(end + b"\xff\xd9", mode)
    return any(not np.array_equal(usual, _decode(other, mode)) for other in _others(end, frame))


def _jpeg_frame(data: bytes) -> JpegFrame | None:  # noqa: C901 - a branch for each kind of marker
    sizes: dict[int, tuple[int, int]] = {}
    left: dict[int, bytearray] = {}
    width = height = height_at = kind = scans = data_start = data_end = 0
    restarts, last_scan, exif = False, b"", b""
    at = 2
    while True:
        at = data.index(b"\xff", at)  # what lies between the markers is passed over
        while data[at] == 0xFF:  # noqa: PLR2004 - every marker begins so
            at += 1
        marker, at = data[at], at + 1
        if marker == _JPEG_EOI or marker in _JPEG_OTHER_SOF:
            break
        length = int.from_bytes(data[at : at + 2], "big")
        body = data[at + 2 : at + length]
        if marker in _JPEG_SOF:
            if kind or body[0] != _JPEG_BITS:
                return None
            kind, height_at = marker, at + 3
            height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
            for number in range(body[5]):
                name, factors = body[6 + 3 * number], body[7 + 3 * number]
                sizes[name] = factors >> 4, factors & 15
        elif marker == _JPEG_DRI:
            restarts = int.from_bytes(body[:2], "big") > 0
        elif marker == _JPEG_APP1 and body.startswith(_EXIF) and not scans:
            exif += body[len(_EXIF) :]  # of several segments
        at += length
        if marker == _JPEG_SOS:
            scans, last_scan = scans + 1, body
            _note_scan(body, left, progressive=kind == _JPEG_PROGRESSIVE)
            data_start = at
            at = data_end = _end_of_data(data, at)
    if not scans or not sizes or not width * height or marker != _JPEG_EOI:
        return None
    first = next(iter(sizes))
    if len(sizes) == 1:  # its blocks come one by one, whatever its factors say
        sizes[first] = 1, 1
    return JpegFrame(
        width=width,
        height=height,
        height_at=height_at,
        block_columns=sizes[first][0],
        unit_rows=_JPEG_BLOCK * max(rows for _, rows in sizes.values()),
        unit_columns=_JPEG_BLOCK * max(columns for columns, _ in sizes.values()),
        scans=scans,
        components=len(sizes),
        complete=all(bytes(left.get(name, b"")) == _NOTHING_LEFT for name in sizes),
        luma_last=len(sizes) == 3 and last_scan[:2] == bytes([1, first]),  # noqa: PLR2004 - YCbCr
        restarts=restarts,
        data_start=data_start,
        data_end=data_end,
        exif=exif,
    )


def _end_of_data(data: bytes, at: int) -> int:
    """Return where the marker begins that ends the data from an offset on."""
    while True:
        at = after = data.index(b"\xff", at)
        while data[after] == 0xFF:  # noqa: PLR2004 - a marker may begin with several
            after += 1
        if data[after] not in _JPEG_IN_DATA:
            return at
        at = after + 1


def _note_scan(body: bytes, left: dict[int, bytearray], *, progressive: bool) -> None:
    """Note how many bits of each component's coefficients are still to come after a scan."""
    count = body[0]
    start, stop, bits = body[1 + 2 * count : 4 + 2 * count]
    if not progressive:
        start, stop, bits = 0, _JPEG_COEFFICIENTS - 1, 0
    scanned = slice(start, min(stop, _JPEG_COEFFICIENTS - 1) + 1)
    for number in range(count):
        coefficients = left.setdefault(body[1 + 2 * number], bytearray(_EVERYTHING_LEFT))
        coefficients[scanned] = bytes([bits & 15]) * len(coefficients[scanned])


def _reaches_the_end(data: bytes, frame: JpegFrame) -> bool | None:
    """Return whether the data of the only scan lasts to its last block; None if that is unknown."""
    rows = -(-frame.height // frame.unit_rows) * frame.unit_rows
    columns = -(-frame.width // frame.unit_columns) * frame.unit_columns
    height = rows + 2 * frame.unit_rows
    higher = bytearray(data[: frame.data_end])
    size = height.to_bytes(2, "big") + columns.to_bytes(2, "big")
    higher[frame.height_at : frame.height_at + 4] = size
    mode = "CMYK" if frame.components == 4 else "L"  # noqa: PLR2004
    blocks = _one_pixel_per_block(bytes(higher) + b"\xff\xd9", height, columns, mode)
    above = rows // _JPEG_BLOCK
    first = blocks[above : above + frame.unit_rows // _JPEG_BLOCK, : frame.block_columns]
    empty = blocks[-1, -1]
    return True if (first != empty).any() else None


def _others(end: bytes, frame: JpegFrame) -> Iterator[bytes]:
    """Yield the file with something else behind its data, as if there were more of it."""
    yield end + _JPEG_FOLLOWING + b"\xff\xd9"
    yield end + b"\xff\0" * len(_JPEG_FOLLOWING) + b"\xff\xd9"
    if frame.restarts:
        markers = [end.rfind(bytes([0xFF, 0xD0 + each]), frame.data_start) for each in range(8)]
        last = max(markers)
        following = (end[last + 1] - 0xD0 + 1) % 8 if last >= 0 else 0
        yield end + bytes([0xFF, 0xD0 + following]) + _JPEG_FOLLOWING + b"\xff\xd9"


def _one_pixel_per_block(data: bytes, height: int, width: int, mode: str) -> Pixels:
    """Decode a file at an eighth of its size, without Pillow's parsing of its markers."""
    size = width // _JPEG_BLOCK, height // _JPEG_BLOCK
    small = Image.frombytes(mode, size, data, "jpeg", mode, "", _JPEG_BLOCK, 0)
    return np.frombuffer(small.tobytes(), np.uint8).reshape(size[1], size[0], -1)


def _decode(data: bytes, mode: str | None) -> Pixels:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as opened:
        if mode:
            opened.draft(mode, opened.size)
        return np.asarray(opened)
