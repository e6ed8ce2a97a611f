"""Which files have more than 8 bits per color that their decoder reduces to 8.

This module is copied into every packaged model.

AVIF and HEIF files state their bits in the properties of an item (ISO/IEC 23008-12, 6.5.6; AV1
Codec ISO Media File Format Binding, 2.3; ISO/IEC 14496-15, 8.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from patchline.pipeline.data.pixel_values.jpeg_k_values import jpeg_bits
from patchline.pipeline.data.pixel_values.tiff_values import tiff_page
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of

_ORDINARY_BITS = 8
_BOX_HEAD, _LONG_BOX_HEAD, _FULL = 8, 16, 4
"""Bytes of the head of a box, of one with a 64-bit length, and of a version with its flags."""
_MOST_DEEP = 4
_NESTED = {b"meta": _FULL, b"iprp": 0, b"ipco": 0}
"""Boxes on the way to the properties, and where their boxes begin."""
_HEVC_LUMA, _HEVC_CHROMA = 17, 18
"""Bytes of the configuration of HEVC that hold the bits beyond 8."""


def read_reduced_bits(data: bytes) -> int:
    """Return the bits per color of a file that is decoded to 8 although it has more; 0 otherwise.

    Args:
        data: the file; one whose values are read with all of their bits is not asked about.
    """
    if data[4:8] == b"ftyp":
        bits = _item_bits(data)
    elif data.startswith((b"II", b"MM")):
        page = tiff_page(data)
        bits = page.palette_bits or max(page.bits)
    elif format_of(data[:HEAD_BYTES]) == "JPEG2000":
        bits = jpeg_bits(data)
    else:
        bits = 0
    return bits if bits > _ORDINARY_BITS else 0


def _item_bits(data: bytes) -> int:
    """Return the bits per color of the main image of an AVIF or HEIF file; 0 if not stated."""
    properties: list[int] = []
    primary, associated = -1, dict[int, list[int]]()
    try:
        for kind, box in _boxes(memoryview(data)):
            if kind == b"pitm":
                primary = int.from_bytes(box[_FULL:], "big")
            elif kind == b"ipma":
                associated |= _associations(box)
            elif kind == b"ipco":
                properties = [_property_bits(*each) for each in _children(box)]
        own = [properties[place - 1] for place in associated.get(primary, ()) if place > 0]
    except (struct.error, IndexError):  # the decoder says what is damaged
        return 0
    return max(own, default=0) or max(properties, default=0)


def _boxes(data: memoryview, deep: int = 0) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the boxes of a file and of those that lead to the properties of its images."""
    for kind, box in _children(data):
        yield kind, box
        if kind in _NESTED and kind != b"ipco" and deep < _MOST_DEEP:
            yield from _boxes(box[_NESTED[kind] :], deep + 1)


def _children(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 0
    while at + _BOX_HEAD <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        head = _BOX_HEAD
        if length == 1:
            length, head = struct.unpack_from(">Q", data, at + _BOX_HEAD)[0], _LONG_BOX_HEAD
        end = at + length if length else len(data)
        if end < at + head:
            return
        yield kind, data[at + head : end]
        at = end


def _associations(box: memoryview) -> dict[int, list[int]]:
    """Return the numbers of the properties of each item, from 1."""
    version, flags = box[0], int.from_bytes(box[1:_FULL], "big")
    at, found = _FULL + 4, dict[int, list[int]]()
    item_form = ">H" if version < 1 else ">I"
    for _ in range(struct.unpack_from(">I", box, _FULL)[0]):
        item = struct.unpack_from(item_form, box, at)[0]
        at += struct.calcsize(item_form)
        count = box[at]
        form = f">{count}{'H' if flags & 1 else 'B'}"
        essential = 0x8000 if flags & 1 else 0x80
        found[item] = [place & ~essential for place in struct.unpack_from(form, box, at + 1)]
        at += 1 + struct.calcsize(form)
    return found


def _property_bits(kind: bytes, box: memoryview) -> int:
    """Return the bits per color that a property states; 0 if it states none."""
    if kind == b"pixi":
        return max(box[_FULL + 1 : _FULL + 1 + box[_FULL]], default=0)
    if kind == b"av1C":
        high, twelve = box[2] & 0x40, box[2] & 0x20
        return 12 if high and twelve else 10 if high else _ORDINARY_BITS
    if kind == b"hvcC":
        return _ORDINARY_BITS + max(box[_HEVC_LUMA] & 7, box[_HEVC_CHROMA] & 7)
    return 0
