"""Find out whether a file holds other values than 8 bits, and read them.

This module is copied into every packaged model.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from PIL import Image

from patchline.pipeline.data.pixel_values.jpeg_k_values import check_jpeg, deep_jpeg, jpeg_values
from patchline.pipeline.data.pixel_values.netpbm_values import deep_netpbm, netpbm_values
from patchline.pipeline.data.pixel_values.pixel_mapping import FLOAT, FileValues, kind_of
from patchline.pipeline.data.pixel_values.png_values import deep_png, png_values
from patchline.pipeline.data.pixel_values.tiff_page import tiff_page
from patchline.pipeline.data.pixel_values.tiff_values import is_plain_tiff, tiff_kind, tiff_values

_ORIENTATION_TAG = 0x0112
_MAYBE_DEEP = (b"II", b"MM", b"P", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP")
"""Starts of TIFF, Netpbm and JPEG 2000 files."""
_PILLOW_MODES = {"uint16": "I;16", "int32": "I", FLOAT: "F"}


class DeepFile(NamedTuple):
    """An image file that does not simply hold 8 bits per color."""

    width: int
    height: int
    mode: str
    """Pillow's name of the pixel format where it has one, else the type and number of samples."""
    pixel_bytes: int
    read: Callable[[], FileValues]


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
    readers = {"PNG": _deep_png, "TIFF": _deep_tiff, "PPM": _deep_netpbm, "JPEG2000": _deep_jpeg}
    reader = readers.get(name or "")
    return reader(data) if reader else None


def orientation_of(image: Image.Image) -> int:
    """Return the orientation that the EXIF data of an image states; 1 if it cannot be read."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001 - an unreadable orientation counts as none
        return 1


def _deep(
    width: int, height: int, kind: str, samples: int, read: Callable[[], FileValues], size: int = 2
) -> DeepFile:
    mode = _PILLOW_MODES.get(kind, kind) if samples == 1 else f"{kind} x {samples}"
    return DeepFile(width, height, mode, samples * size, read)


def _deep_tiff(data: bytes) -> DeepFile | None:
    page = tiff_page(data)
    if is_plain_tiff(page):
        return None
    dtype = tiff_kind(page)
    read = partial(tiff_values, data)
    return _deep(page.width, page.height, kind_of(dtype), page.samples, read, dtype.itemsize)


def _deep_png(data: bytes) -> DeepFile | None:
    header = deep_png(data)

    def read() -> FileValues:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as opened:
            return png_values(data, orientation_of(opened))

    return header and _deep(header.width, header.height, "uint16", header.samples, read)


def _deep_netpbm(data: bytes) -> DeepFile | None:
    header = deep_netpbm(data)
    if header is None:
        return None
    read = partial(netpbm_values, data, header)
    return _deep(header.width, header.height, "uint16", header.samples, read)


def _deep_jpeg(data: bytes) -> DeepFile | None:
    header = deep_jpeg(data)
    if header is None:
        return None

    def read() -> FileValues:
        with Image.open(io.BytesIO(data), formats=("JPEG2000",)) as opened:
            return jpeg_values(data, opened, header)

    return _deep(header.width, header.height, "uint16", header.samples, read)
