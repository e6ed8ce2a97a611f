"""Decode common JPEG files, and see in the same pass whether they are complete.

`decoding` decodes a file a second time, small, to see that nothing is missing. libjpeg-turbo
notices that while it decodes, and simplejpeg passes its warnings on; OpenCV prints them. Packaged
models do without this module; the pixels are the same.
"""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from PIL import Image

from patchline.pipeline.data.reading.decoding import Pixels
from patchline.pipeline.data.reading.jpeg_wholeness import JpegFrame

_COLOR = 3


def decode_jpeg(data: bytes, frame: JpegFrame, *, strict: bool) -> Pixels | None:
    """Return the image (H, W, 3) of a JPEG file in color, as it is stored.

    None is no judgement: the file may be damaged, or merely unusual.

    Args:
        data: the file.
        frame: what its markers state.
        strict: return only an image without a warning, so that nothing of it is missing.
    """
    if frame.components != _COLOR or (strict and not frame.complete):
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
            return np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError):
        return None
