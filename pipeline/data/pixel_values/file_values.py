"""Find out whether a file holds other values than 8 bits, and read them.

This module is copied into every packaged model.
"""

from __future__ import annotations

from patchline.pipeline.data.pixel_values.jpeg_k_values import check_jpeg, deep_jpeg
from patchline.pipeline.data.pixel_values.netpbm_values import deep_netpbm
from patchline.pipeline.data.pixel_values.pixel_mapping import DeepFile
from patchline.pipeline.data.pixel_values.png_values import deep_png
from patchline.pipeline.data.pixel_values.tiff_values import deep_tiff

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
