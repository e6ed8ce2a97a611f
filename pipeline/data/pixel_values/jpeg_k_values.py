"""Read all bits of grey JPEG 2000 files, and refuse JPEG files of more than 8 bits.

This module is copied into every packaged model. Colors of more than 8 bits are mapped to 8 by
Pillow, from the number of bits that the file declares (ISO/IEC 15444-1, A.5.1).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from PIL import Image

from pipeline.data.pixel_values.pixel_mapping import FileValues
from pipeline.data.pixel_values.undecodable import UndecodableImageError

_START = b"\xff\x4f\xff\x51"
_FIELDS = ">HHIIIIIIIIH"
_SIGNED = 0x80
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_JPEG_LS, _SCAN = 0xF7, 0xDA


class DeepJpeg(NamedTuple):
    """What the header of a grey file of more than 8 bits states."""

    width: int
    height: int
    bits: int


def deep_jpeg(data: bytes) -> DeepJpeg | None:
    """Return what the header states; None for 8 bits or fewer, and for colors.

    Raises:
        UndecodableImageError: if its values have a sign.
    """
    at = data.find(_START, 0, 1 << 16)
    try:
        if at < 0:
            return None
        fields = struct.unpack_from(_FIELDS, data, at + len(_START))
        depths = data[at + len(_START) + struct.calcsize(_FIELDS) :: 3][: fields[-1]]
    except struct.error:
        return None
    if any(depth & _SIGNED for depth in depths):
        raise UndecodableImageError("its values have a sign, which is not read; save it as TIFF")
    bits = max(depths, default=0) + 1
    if len(depths) != 1 or bits <= 8:  # noqa: PLR2004 - bits
        return None
    return DeepJpeg(fields[2] - fields[4], fields[3] - fields[5], bits)


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


def jpeg_values(image: Image.Image, header: DeepJpeg) -> FileValues:
    """Return the values of a file that Pillow has opened, and stretches to 16 bits."""
    stretched = np.asarray(image)
    if stretched.dtype != np.uint16:
        raise UndecodableImageError(f"the installed Pillow cannot read its {header.bits} bits")
    samples_HW = stretched >> max(0, 16 - header.bits)
    return FileValues(samples_HW[:, :, None], 1, declared=float((1 << header.bits) - 1))
