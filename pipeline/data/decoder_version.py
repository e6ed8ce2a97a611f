"""What determines the pixels of a decoded image, besides its file."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline.data import decoding, image_formats, jpeg_wholeness, png_chunks, resizing

DECODER_VERSION = 2
"""Increase it when decoding or resizing changes a pixel; old stores are then not used."""
_MODULES = (decoding, image_formats, jpeg_wholeness, png_chunks, resizing)
_LIBRARIES = ("opencv-python-headless", "pillow")


@cache
def decoder_version() -> tuple[int | str, ...]:
    """Return the version, a digest of the decoder's source, and the versions of its libraries."""
    versions = [metadata.version(name) for name in _LIBRARIES]
    texts = [Path(str(module.__file__)).read_bytes() for module in _MODULES]
    return DECODER_VERSION, hashlib.sha256(b"\0".join(texts)).hexdigest(), *versions
