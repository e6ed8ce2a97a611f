"""Read PGM and PPM files of more than 8 bits, whose header declares the value of white.

This module is copied into every packaged model.
"""

from __future__ import annotations

import re

import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import DeepFile, FileValues
from patchline.pipeline.data.pixel_values.undecodable import UndecodableImageError

_SPACE = rb"(?:\s|#[^\n]*\n)+"
_HEADER = re.compile(
    rb"P([2356])" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})\s"
)
_LONGEST_HEADER = 1 << 16
_MOST = 65535
_EIGHT = 255


def deep_netpbm(data: bytes) -> DeepFile | None:
    """Return a file of more than 8 bits; None for one of 8 bits or fewer.

    Reading its values raises an `UndecodableImageError` if it is damaged.
    """
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None or not _EIGHT < int(header[4]) <= _MOST:
        return None
    kind, width, height, white = (int(each) for each in header.groups())
    samples = 3 if kind in (3, 6) else 1

    def read() -> FileValues:
        count, start = width * height * samples, header.end()
        if kind in (2, 3):
            text = re.sub(rb"#[^\n]*", b"", data[start:])
            numbers = np.array(text.split()[:count], dtype=np.int64)
            values = np.clip(numbers, 0, _MOST).astype(np.uint16)
        else:
            there = min(count, (len(data) - start) // 2)
            values = np.frombuffer(data, ">u2", there, start).astype(np.uint16)
        if len(values) < count:
            raise UndecodableImageError("the file ends too early")
        return FileValues(values.reshape(height, width, samples), samples, declared=float(white))

    return DeepFile.of((width, height), samples, read)
