"""Decode common JPEG files, and see in the same pass whether they are complete.

`decoding` decodes a file a second time, small, to see that nothing is missing. libjpeg-turbo
notices that while it decodes, and simplejpeg passes its warnings on; OpenCV prints them. Packaged
models do without this module; the pixels are the same.
"""

from __future__ import annotations

import io
import re

import simplejpeg
from PIL import Image

from patchline.pipeline.data.reading.decoding import Pixels, UndecodableImageError, pillow_pixels
from patchline.pipeline.data.reading.jpeg_wholeness import JpegFrame

_COLOR = 3
_EXIF = b"Exif\0\0"
_LONGEST_EXIF = 1 << 16
_NOT_UPRIGHT = re.compile(
    rb"\x01\x12\x00[\x01-\x0d].{4}(?!\x00\x01)|\x12\x01[\x01-\x0d]\x00.{4}(?!\x01\x00)", re.DOTALL
)
"""An orientation other than 1, in either byte order: tag 0x0112, type, count and value."""


def decode_jpeg(data: bytes, frame: JpegFrame, *, strict: bool) -> Pixels | None:
    """Return the image (H, W, 3) of a JPEG file in color that is upright as it is stored.

    None is no judgement: the file may be damaged, turned by its EXIF data, or merely unusual.

    Args:
        data: the file.
        frame: what its markers state.
        strict: return only an image without a warning, so that nothing of it is missing.
    """
    if frame.components != _COLOR or (strict and not frame.complete) or _may_be_turned(data, frame):
        return None
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=strict)
    except ValueError:
        return None if strict else _in_pillow(data)
    return pixels if pixels.shape == (frame.height, frame.width, _COLOR) else None


def _in_pillow(data: bytes) -> Pixels | None:
    """Decode a file with a warning about its header, which simplejpeg does not pass over."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as opened:
            return pillow_pixels(opened, _COLOR)
    except (UndecodableImageError, OSError, SyntaxError):
        return None


def _may_be_turned(data: bytes, frame: JpegFrame) -> bool:
    at = data.find(_EXIF, 0, frame.data_start)
    return at >= 0 and bool(_NOT_UPRIGHT.search(data, at, at + _LONGEST_EXIF))
