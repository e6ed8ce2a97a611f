"""Decode and resize one image: the one function for the store, the evaluation and the package.

This module is written into every packaged model, so it imports numpy, OpenCV and Pillow alone and
nothing from Patchline.

Whole JPEG and PNG files of the common kinds take OpenCV's fast path; everything else, and
everything that looks damaged, goes through Pillow, which is strict.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 178_956_970
"""Images with more pixels are refused, as they may be decompression bombs (Pillow's own limit)."""

_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_PNG_HEADER = 33  # bytes of the signature and the first chunk
_PNG_COLOUR_TYPE, _PNG_BIT_DEPTH = 25, 24
_PNG_PLAIN = {0, 2}  # greyscale and RGB, without palette or transparency
_TRAILING_BYTES = 64  # some cameras write a little behind the end marker


class UndecodableImageError(ValueError):
    """The bytes are not an image, or only a part of one."""


def decode_image(data: bytes, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode an image file to uint8 (height, width, channels), the right way up.

    Transparent pixels are laid on white; 16-bit images are scaled to 8 bits.

    Raises:
        UndecodableImageError: with the reason, if the bytes are not a whole image.
    """
    if len(data) == 0:
        raise UndecodableImageError("the file is empty")
    pixels = _decode_fast(data, channels)
    if pixels is None:
        pixels = _decode_strict(data, channels)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]  # noqa: PLR2004 - H, W, C


def _decode_fast(data: bytes, channels: int) -> np.ndarray[Any, Any] | None:
    whole_jpeg = data.startswith(_JPEG_START) and _JPEG_END in data[-_TRAILING_BYTES:]
    plain_png = (
        len(data) > _PNG_HEADER
        and data.startswith(_PNG_START)
        and _PNG_END in data[-_TRAILING_BYTES:]
        and data[_PNG_COLOUR_TYPE] in _PNG_PLAIN
        and data[_PNG_BIT_DEPTH] == 8  # noqa: PLR2004 - bits
        and b"tRNS" not in data[: data.find(b"IDAT")]
    )
    if not (whole_jpeg or plain_png):
        return None
    if whole_jpeg and b"Adobe" in data[:4096]:
        return None  # may be CMYK, which OpenCV and Pillow read differently
    if not _has_allowed_size(data):
        return None
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        return None
    return pixels if pixels is None or pixels.size else None


def _has_allowed_size(data: bytes) -> bool:
    """Read the header alone; whatever is odd about it, the strict path explains."""
    try:
        with Image.open(io.BytesIO(data)) as opened:
            return opened.width * opened.height <= MAX_PIXELS
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return False


def _decode_strict(data: bytes, channels: int) -> np.ndarray[Any, Any]:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            _refuse_bomb(opened.width, opened.height)
            opened.load()
            image: Image.Image = ImageOps.exif_transpose(opened)
            if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
                values = np.asarray(image, dtype=np.float64)
                top = 65535.0 if image.mode != "F" or values.max(initial=0) > 255 else 255.0  # noqa: PLR2004
                image = Image.fromarray(np.clip(values / top * 255, 0, 255).astype(np.uint8))
            if "A" in image.getbands() or "transparency" in image.info:
                rgba = image.convert("RGBA")
                white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
                image = Image.alpha_composite(white, rgba)
            return np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except UndecodableImageError:
        raise
    except UnidentifiedImageError as error:
        raise UndecodableImageError("not an image that can be read") from error
    except Image.DecompressionBombError as error:
        raise UndecodableImageError(str(error)) from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError) as error:
        raise UndecodableImageError(_in_words(error)) from error


def _in_words(error: Exception) -> str:
    """Return Pillow's reason, its commonest one in plain words."""
    reason = str(error) or type(error).__name__
    return "the file ends too early" if "truncated" in reason.lower() else reason


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UndecodableImageError(f"{width}x{height} pixels are more than {MAX_PIXELS}")


def resize_image(
    image_HWC: np.ndarray[Any, Any],
    height: int,
    width: int,
    resize: Literal["crop", "squash"],
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bring an image to a size: (H, W, C) to (height, width, C), uint8.

    `crop` scales until the image covers the target and cuts at the centre; `squash` scales each
    side alone. Shrinking averages over the area, enlarging interpolates cubically.
    """
    source_height, source_width, channels = image_HWC.shape
    if (source_height, source_width) == (height, width):
        return np.ascontiguousarray(image_HWC)
    new_height, new_width = height, width
    if resize == "crop":
        scale = max(height / source_height, width / source_width)
        new_height = max(height, round(source_height * scale))
        new_width = max(width, round(source_width * scale))
    shrinks = new_height < source_height or new_width < source_width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    scaled = cv2.resize(
        np.ascontiguousarray(image_HWC), (new_width, new_height), interpolation=method
    )
    top, left = (new_height - height) // 2, (new_width - width) // 2
    cut = scaled.reshape(new_height, new_width, channels)[top : top + height, left : left + width]
    return np.ascontiguousarray(cut)
