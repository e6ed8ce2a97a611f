"""What determines the pixels of a decoded image, besides its file."""

from __future__ import annotations

from functools import cache

from patchline.pipeline.workspace.run_memory import stage_keys

_READING = "patchline.pipeline.data.reading"
_CODE = (f"{_READING}.decoding", f"{_READING}.jpeg_decoding", f"{_READING}.resizing")
"""Where the code begins that decides a pixel."""
_LIBRARIES = ("opencv-python-headless", "pillow", "pillow-heif", "simplejpeg")


@cache
def decoder_version() -> tuple[str, ...]:
    """Return a digest of the decoder's code, and the versions of its libraries."""
    return stage_keys.code(*_CODE), *map(stage_keys.find_installed_version, _LIBRARIES)
