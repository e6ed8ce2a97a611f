"""What determines the pixels of a decoded image, besides its file."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from patchline.pipeline.data.pixel_values import (
    file_values,
    jpeg_k_values,
    netpbm_values,
    pixel_mapping,
    png_values,
    tiff_page,
    tiff_values,
)
from patchline.pipeline.data.reading import (
    decoding,
    image_formats,
    jpeg_decoding,
    jpeg_wholeness,
    pillow_decoding,
    png_chunks,
    resizing,
)

DECODER_VERSION = 3
"""Increase it when decoding or resizing changes a pixel; old stores are then not used."""
_MODULES = (
    *(
        decoding,
        image_formats,
        jpeg_decoding,
        jpeg_wholeness,
        pillow_decoding,
        png_chunks,
        resizing,
    ),
    *(file_values, jpeg_k_values, netpbm_values, pixel_mapping, png_values, tiff_page, tiff_values),
)
_LIBRARIES = ("opencv-python-headless", "pillow", "pillow-heif", "simplejpeg")


@cache
def decoder_version() -> tuple[int | str, ...]:
    """Return the version, a digest of the decoder's source, and the versions of its libraries."""
    texts = [Path(str(module.__file__)).read_bytes() for module in _MODULES]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return DECODER_VERSION, digest, *map(_version, _LIBRARIES)


def _version(library: str) -> str:
    """Return the version of a library; empty if it is not installed."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
