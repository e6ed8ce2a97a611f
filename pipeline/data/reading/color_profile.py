"""Whether the color profile of an image file says other colors than sRGB, which decoders assume."""

from __future__ import annotations

import functools
import io

import numpy as np
from PIL import Image, ImageCms

from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of

_MARKS = (b"acsp", b"iCCP")
"""Of a profile as it is, and of one that a PNG file has packed."""
_MODES = {"RGB": "RGB", "GRAY": "L"}
"""Spaces of the colors that profiles describe; CMYK is named as an unusual mode."""
_SAME = 8
"""Levels of 255 that two versions of sRGB may be apart."""


def foreign_profile(data: bytes) -> str:
    """Return the name of an image file's color profile; empty for none or sRGB.

    A profile that cannot be read counts as none, as in browsers.
    """
    name = format_of(data[:HEAD_BYTES])
    if name is None or not any(mark in data for mark in _MARKS):
        return ""
    try:
        with Image.open(io.BytesIO(data), formats=(name,)) as opened:
            profile = opened.info.get("icc_profile") or b""
    except (OSError, ValueError, SyntaxError, KeyError):
        return ""
    return _foreign_name(profile) if profile else ""


@functools.lru_cache(maxsize=64)
def _foreign_name(profile: bytes) -> str:
    try:
        described = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _MODES.get(described.profile.xcolor_space.strip())
        if mode is None:
            return ""
        stored = _colors().convert(mode)
        srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        meant = ImageCms.profileToProfile(stored, described, srgb, outputMode="RGB")
        name = ImageCms.getProfileDescription(described).strip()
    except (OSError, ValueError, ImageCms.PyCMSError):
        return ""
    apart = np.abs(np.asarray(meant, int) - np.asarray(stored.convert("RGB"), int))
    return (name or "a profile without a name") if apart.max() > _SAME else ""


def _colors() -> Image.Image:
    """Return an image with colors from all over RGB."""
    levels = np.linspace(0, 255, 6).astype(np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1)
    return Image.fromarray(grid.reshape(6, -1, 3))
