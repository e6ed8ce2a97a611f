"""Read PGM and PPM files of more than 8 bits, whose header declares the value of white.

This module is copied into every packaged model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues
from patchline.pipeline.data.pixel_values.undecodable import UndecodableImageError

_SPACE = rb"(?:\s|#[^\n]*\n)+"
_HEADER = re.compile(
    rb"P([2356])" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})\s"
)
_LONGEST_HEADER = 1 << 16
_MOST = 65535
_EIGHT = 255


class DeepNetpbm(NamedTuple):
    """What the header of a file of more than 8 bits states."""

    width: int
    height: int
    samples: int
    """Per pixel."""
    white: int
    is_text: bool
    start: int
    """Where the pixels begin."""


def deep_netpbm(data: bytes) -> DeepNetpbm | None:
    """Return what the header states; None for a file of 8 bits or fewer."""
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None or not _EIGHT < int(header[4]) <= _MOST:
        return None
    kind, width, height, white = (int(each) for each in header.groups())
    samples = 3 if kind in (3, 6) else 1
    return DeepNetpbm(width, height, samples, white, kind in (2, 3), header.end())


def netpbm_values(data: bytes, header: DeepNetpbm) -> FileValues:
    """Return the values of a file.

    Raises:
        UndecodableImageError: if it is damaged.
    """
    count = header.width * header.height * header.samples
    if header.is_text:
        text = re.sub(rb"#[^\n]*", b"", data[header.start :])
        numbers = np.array(text.split()[:count], dtype=np.int64)
        values = np.clip(numbers, 0, _MOST).astype(np.uint16)
    else:
        there = min(count, (len(data) - header.start) // 2)
        values = np.frombuffer(data, ">u2", there, header.start).astype(np.uint16)
    if len(values) < count:
        raise UndecodableImageError("the file ends too early")
    samples_HWN = values.reshape(header.height, header.width, header.samples)
    return FileValues(samples_HWN, header.samples, declared=float(header.white))
