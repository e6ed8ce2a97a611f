"""Find out whether a file holds other values than 8 bits, and read them.

Files of the format Netpbm (PGM and PPM) are read here: their header declares the value of white.

This module is copied into every packaged model.
"""

from __future__ import annotations

import re

import numpy as np

from patchline.pipeline.data.pixel_values.jpeg_k_values import check_jpeg, deep_jpeg
from patchline.pipeline.data.pixel_values.pixel_mapping import (
    DeepFile,
    FileValues,
    UndecodableImageError,
)
from patchline.pipeline.data.pixel_values.png_values import deep_png
from patchline.pipeline.data.pixel_values.tiff_values import deep_tiff

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


_MAYBE_DEEP = (b"II", b"MM", b"P", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP")
"""Starts of TIFF, Netpbm and JPEG 2000 files."""
_READERS = {"PNG": deep_png, "TIFF": deep_tiff, "PPM": deep_netpbm, "JPEG2000": deep_jpeg}


def may_be_deep(data: bytes) -> bool:
    """Return whether a file may hold other values than 8 bits, from a glance at its first bytes."""
    if data.startswith(b"\x89PNG"):
        return deep_png(data) is not None
    return data.startswith(_MAYBE_DEEP)


def deep_file(data: bytes, name: str | None) -> DeepFile | None:
    """Return what a file states; None if image libraries read it as it is meant.

    Args:
        data: the file.
        name: Pillow's name of its format.

    Raises:
        UndecodableImageError: if it is of a kind that is not read.
    """
    if name == "JPEG":
        check_jpeg(data)
    reader = _READERS.get(name or "")
    return reader(data) if reader else None
