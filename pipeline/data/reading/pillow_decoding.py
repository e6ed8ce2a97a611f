"""Turn an image that Pillow has opened into 8 bits, the right way up.

This module is copied into every packaged model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    FileValues,
    PixelMapping,
    UndecodableImageError,
    ValueFit,
    orientation_in,
)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
OnOpacity = Callable[[Pixels], None]
"""Called with the opacity of some rows of an image of 8 bits (rows, W)."""
OnFit = Callable[[ValueFit], None]
"""Called with how the values of an image fit the range that maps them."""

_STRIP_PIXELS = 1 << 20
_DEEP_MODES = {"I", "I;16", "I;16B", "I;16L", "I;16N", "F"}
_EIGHT_BIT_MODES = {
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX"),
    *("CMYK", "YCbCr", "LAB", "HSV"),
}
_BAND_MODES = {"1": "L", "L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA"}


def upright_pixels(
    image: Image.Image,
    channels: int,
    mapping: PixelMapping,
    on_opacity: OnOpacity | None = None,
    on_fit: OnFit | None = None,
) -> Pixels:
    """Return the pixels (H, W, C), converted in strips to avoid a second full copy.

    Raises:
        UndecodableImageError: if nothing says what its values mean.
    """
    xmp = image.info.pop("xmp", None)  # by which Pillow would turn a TIFF image as it is loaded
    image.load()
    if xmp is not None:
        image.info["xmp"] = xmp
    orientation = orientation_in(image.info.get("exif") or b"")
    if image.mode in _DEEP_MODES:
        values = FileValues(np.asarray(image)[:, :, None], 1, orientation=orientation)
        return map_pixels(values, channels, mapping, on_fit)
    if image.mode not in _EIGHT_BIT_MODES:
        raise UndecodableImageError(f"its pixel format {image.mode} is not read; convert it to RGB")
    if on_fit:
        on_fit(ValueFit())
    if mapping.bands:
        return turn_upright(mapping.selected(_bands(image), channels), orientation)
    flips = _flips(orientation)
    height, width = image.height, image.width
    upright = np.empty((width, height) if flips[2] else (height, width), np.uint8)
    if channels > 1:
        upright = np.empty((*upright.shape, channels), np.uint8)
    stored = _as_stored(upright, *flips)
    rows = max(1, _STRIP_PIXELS // image.width)
    for start in range(0, image.height, rows):
        stop = min(image.height, start + rows)
        whole = start == 0 and stop == image.height
        strip = image if whole else image.crop((0, start, image.width, stop))
        stored[start:stop] = _eight_bits(strip, channels, mapping, on_opacity)
    return upright if channels > 1 else upright[:, :, None]


def map_pixels(
    values: FileValues, channels: int, mapping: PixelMapping, on_fit: OnFit | None = None
) -> Pixels:
    """Return the values of a file as pixels (H, W, C), the right way up.

    Raises:
        UndecodableImageError: if nothing says what its values mean.
    """
    pixels_HWC, fit = mapping.eight_bits(values, channels)
    if on_fit:
        on_fit(fit)
    return turn_upright(pixels_HWC, values.orientation)


def _eight_bits(
    image: Image.Image, channels: int, mapping: PixelMapping, on_opacity: OnOpacity | None
) -> np.ndarray[Any, Any]:
    """Return a strip as uint8, (rows, width) or (rows, width, 3)."""
    has_opacity = image.mode in {"LA", "La", "PA", "RGBA", "RGBa"}
    if has_opacity or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if has_opacity and on_opacity:
            on_opacity(np.asarray(rgba.getchannel("A")))
        if has_opacity and not mapping.opacity:
            image = rgba.convert("RGB")
        else:
            white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, rgba)
    return np.asarray(image.convert("L" if channels == 1 else "RGB"))


def _bands(image: Image.Image) -> np.ndarray[Any, Any]:
    """Return the bands of an image of 8 bits (H, W, N), as they are in its file."""
    mode = _BAND_MODES.get(image.mode, "RGBA" if "transparency" in image.info else "RGB")
    samples = np.asarray(image if image.mode == mode else image.convert(mode))
    return samples[:, :, None] if samples.ndim == 2 else samples  # noqa: PLR2004 - H, W


def turn_upright(pixels_HWC: Pixels, orientation: int) -> Pixels:
    """Return stored pixels the right way up."""
    flips = _flips(orientation)
    if not any(flips):
        return pixels_HWC
    height, width, channels = pixels_HWC.shape
    upright = np.empty((width, height, channels) if flips[2] else pixels_HWC.shape, np.uint8)
    _as_stored(upright, *flips)[:] = pixels_HWC
    return upright


def _flips(orientation: int) -> tuple[bool, bool, bool]:
    """Return whether an orientation flips rows, flips columns, and swaps the axes."""
    return {
        2: (False, True, False),
        3: (True, True, False),
        4: (True, False, False),
        5: (False, False, True),
        6: (True, False, True),
        7: (True, True, True),
        8: (False, True, True),
    }.get(orientation, (False, False, False))


def _as_stored(upright: Pixels, rows: bool, columns: bool, axes: bool) -> Pixels:
    """Return a view of an upright array in the orientation of the image file."""
    stored = upright.swapaxes(0, 1) if axes else upright
    stored = stored[::-1] if rows else stored
    return stored[:, ::-1] if columns else stored
