"""Whether the color profile of an image file says other colors than sRGB, which decoders assume."""

from __future__ import annotations

import functools
import io

import numpy as np
from PIL import Image, ImageCms

from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of

_MODES = {"RGB": "RGB", "GRAY": "L"}
"""Spaces of the colors that profiles describe; those of others, such as CMYK, are not sRGB."""
_CODES = {"PNG": b"cICP", "AVIF": b"colrnclx", "HEIF": b"colrnclx"}
"""What stands before the codes of colors, as ITU-T H.273 numbers them."""
_USUAL = {1, 2, 5, 6, 7}, {1, 2, 4, 6, 13, 14, 15}
"""Primaries and transfer of sRGB, of television, which are nearly so, and of nothing specified."""
_NAMES = {9: "BT.2020", 12: "Display P3"}, {16: "PQ", 18: "HLG"}
UNREADABLE = "a colour profile that cannot be read"
_SAME = 8
"""Levels of 255 that two versions of sRGB may be apart."""


def foreign_profile(data: bytes) -> str:
    """Return the name of an image file's color profile; empty for none or sRGB.

    One that cannot be read is `UNREADABLE`. Codes count as a profile: those of a PNG file before
    its profile, those of AVIF and HEIF if there is none.
    """
    name = format_of(data[:HEAD_BYTES])
    if name is None:
        return ""
    codes = _foreign_codes(data, name)
    if codes and name == "PNG":
        return codes
    try:
        with Image.open(io.BytesIO(data), formats=(name,)) as opened:
            profile = opened.info.get("icc_profile", b"")
    except (OSError, ValueError, SyntaxError, KeyError):
        return codes
    return codes if profile == b"" else _foreign_name(profile or b"")


def _foreign_codes(data: bytes, name: str) -> str:
    """Return in words what the codes of an image file say; empty if they are usual, or missing."""
    mark = _CODES.get(name)
    start = data.find(mark, 0, data.find(b"IDAT") if name == "PNG" else None) if mark else -1
    if mark is None or start < 0:
        return ""
    numbers = data[start + len(mark) : start + len(mark) + 4].ljust(4, b"\2")  # not specified
    codes = zip(numbers if name == "PNG" else numbers[1::2], _USUAL, _NAMES, strict=False)
    return " ".join(
        names.get(code, f"code {code}") for code, usual, names in codes if code not in usual
    )


@functools.lru_cache(maxsize=64)
def _foreign_name(profile: bytes) -> str:
    try:
        described = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        name = ImageCms.getProfileDescription(described).strip() or "a profile without a name"
        mode = _MODES.get(described.profile.xcolor_space.strip())
        if mode is None:
            return name
        stored = _colors().convert(mode)
        srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        meant = ImageCms.profileToProfile(stored, described, srgb, outputMode="RGB")
    except (OSError, ValueError, ImageCms.PyCMSError):
        return UNREADABLE
    apart = np.abs(np.asarray(meant, int) - np.asarray(stored.convert("RGB"), int))
    return name if apart.max() > _SAME else ""


def _colors() -> Image.Image:
    """Return an image with colors from all over RGB."""
    levels = np.linspace(0, 255, 6).astype(np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1)
    return Image.fromarray(grid.reshape(6, -1, 3))
