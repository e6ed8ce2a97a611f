"""Decode and resize one image: the one function for the store, the evaluation and the package.

This module and those that it imports are written into every packaged model, so they import numpy,
OpenCV and Pillow alone, and nothing else from Patchline.

JPEG and PNG files of the common kinds take OpenCV's fast path, once they have proved to be whole;
everything else goes through Pillow. Headers are looked at before pixels, and images that are
decoded at the same time share a budget of memory.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from PIL import Image

from pipeline.data.image_formats import HEAD_BYTES, format_of, why_not_read
from pipeline.data.jpeg_wholeness import JpegFrame, jpeg_frame, lacks_data
from pipeline.data.png_chunks import plain_png

MAX_PIXELS = 178_956_970
"""Images with more pixels are refused, as they may be decompression bombs (Pillow's own limit)."""
MAX_SIDE = 1_000_000
"""Images with more pixels on a side are refused."""

_COPIED_FORMATS = {"WEBP", "AVIF", "JPEG2000"}
"""Their decoders hold several copies of the whole image: a quarter of the pixels is the most."""
_TRAILING_BYTES = 64  # some cameras write a little behind the end marker
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_COPIES = 4
_STRIP_PIXELS = 1 << 20
_DEEP_MODES = {"I", "I;16", "I;16B", "I;16L", "F"}
_ORIENTATION = 0x0112
_LONGEST_REASON = 200
_MOST_STRETCHED = 16
"""A scaled image may be so many times as large as what is cut from it; beyond, it is cut first."""
_CUBIC_MARGIN = 4  # pixels that interpolation looks at, and one more

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# Pillow's remarks about metadata and large images; what matters here is said in an error.
warnings.filterwarnings("ignore", module=r"PIL(\..*)?$")


class UndecodableImageError(ValueError):
    """The bytes are not an image, or only a part of one."""


class ImageHeader(NamedTuple):
    """What an image file says about itself."""

    width: int
    height: int
    mode: str
    """Pillow's name of the kind of pixels: `RGB`, `L`, `P`, `I;16`, …"""


class SharedBudget:
    """An amount that threads share: whoever asks for more than is left waits."""

    def __init__(self, amount: int) -> None:
        self._amount = self._left = amount
        self._changed = threading.Condition()

    @contextmanager
    def share(self, amount: int) -> Iterator[None]:
        """Take an amount, at most the whole, while the block runs."""
        amount = min(amount, self._amount)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= amount)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()


_pixels_in_flight = SharedBudget(MAX_PIXELS)


def decode_image(data: bytes, channels: int) -> Pixels:
    """Decode an image file to uint8 (height, width, channels), the right way up.

    Transparent pixels are laid on white; 16-bit images are scaled to 8 bits.

    Raises:
        UndecodableImageError: with the reason, if the bytes are not a whole image.
    """
    with decoded(data, channels) as pixels_HWC:
        return pixels_HWC


@contextmanager
def decoded(data: bytes, channels: int, *, known_whole: bool = False) -> Iterator[Pixels]:
    """Decode an image as `decode_image` does and hold its share of memory while the block runs.

    Threads that decode many images use this, so that all of them together stay in bounds.

    Args:
        data: the file.
        channels: 1 or 3.
        known_whole: whether these bytes have been decoded before, so that nothing is missing.

    Raises:
        UndecodableImageError: with the reason, if the bytes are not a whole image.
    """
    with _failures_named():
        frame = jpeg_frame(data) if data.startswith(_JPEG_START) else None
        width, height = frame[:2] if frame else _header(data)[:2]
        work = _checked_work(data, width, height)
    with _pixels_in_flight.share(work):
        with _failures_named():
            if frame and not known_whole and lacks_data(data, frame):
                raise UndecodableImageError("the file ends too early")
            pixels = _decode_fast(data, channels, frame)
            if pixels is None:
                pixels = _decode_strict(data, channels)
            if pixels.ndim != 3:  # noqa: PLR2004 - H, W, C
                pixels = pixels[:, :, None]
        yield pixels


def read_header(data: bytes) -> ImageHeader:
    """Return what an image file says about itself, without decoding it.

    Raises:
        UndecodableImageError: with the reason, if it is no image that is read, or too large.
    """
    with _failures_named():
        return _header(data)


@contextmanager
def _failures_named() -> Iterator[None]:
    """Turn whatever a decoder raises into the reason why this image cannot be read."""
    try:
        yield
    except UndecodableImageError:
        raise
    except MemoryError as error:
        raise UndecodableImageError("decoding it takes more memory than there is") from error
    except Exception as error:  # decoders raise what they like
        raise UndecodableImageError(_in_words(error)) from error


def _in_words(error: Exception) -> str:
    """Return a decoder's reason in one line, its commonest ones in plain words."""
    reason = " ".join(str(error).split())
    if "truncated" in reason.lower():
        return "the file ends too early"
    if "cannot identify image file" in reason:
        return "not an image that can be read"
    if not isinstance(error, (OSError, ValueError, SyntaxError)) or not reason:
        reason = f"its decoder failed ({type(error).__name__}{': ' if reason else ''}{reason})"
    shown = "".join(each if each.isprintable() else "?" for each in reason)
    return shown if len(shown) <= _LONGEST_REASON else f"{shown[: _LONGEST_REASON - 1]}…"


def _header(data: bytes) -> ImageHeader:
    if not data:
        raise UndecodableImageError("the file is empty")
    with _opened(data) as image:
        header = ImageHeader(image.width, image.height, image.mode)
    _checked_work(data, header.width, header.height)
    return header


def _checked_work(data: bytes, width: int, height: int) -> int:
    """Return the memory that decoding takes, in pixels of a common format; refuse too much."""
    weight = _COPIES if format_of(data[:HEAD_BYTES]) in _COPIED_FORMATS else 1
    if max(width, height) > MAX_SIDE:
        raise UndecodableImageError(f"{width}x{height} pixels are more than {MAX_SIDE} on a side")
    if width * height * weight > MAX_PIXELS:
        most = MAX_PIXELS // weight
        raise UndecodableImageError(f"{width}x{height} pixels are more than {most}")
    return width * height * weight


def _opened(data: bytes) -> Image.Image:
    """Open with the decoder of the file's own format alone; nothing is decoded yet."""
    name = format_of(data[:HEAD_BYTES])
    if name is None:
        raise UndecodableImageError(why_not_read(data[:HEAD_BYTES]))
    try:
        return Image.open(io.BytesIO(data), formats=(name,))
    except KeyError:
        raise UndecodableImageError(f"this Pillow reads no {name} files") from None


def _decode_fast(data: bytes, channels: int, frame: JpegFrame | None) -> Pixels | None:
    if data.startswith(_PNG_START):
        png = plain_png(data) if _PNG_END in data[-_TRAILING_BYTES:] else None
        return _in_opencv(png.data, channels) if png else None
    if frame is None or _JPEG_END not in data[-_TRAILING_BYTES:] or b"Adobe" in data[:4096]:
        return None  # may be CMYK, which OpenCV and Pillow read differently
    return _in_opencv(data, channels)


def _in_opencv(data: bytes, channels: int) -> Pixels | None:
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        return None
    return pixels if pixels is None or pixels.size else None


# -- Pillow ------------------------------------------------------------------------------------


def _decode_strict(data: bytes, channels: int) -> Pixels:
    """Decode with Pillow and convert strip by strip, so that no second whole copy is made."""
    with _opened(data) as image:
        image.load()
        flips = _flips(image)
        height, width = image.height, image.width
        if flips[2]:
            height, width = width, height
        shape = (height, width) if channels == 1 else (height, width, channels)
        upright = np.empty(shape, np.uint8)
        stored = _as_stored(upright, *flips)
        top = _white_of(image)
        rows = max(1, _STRIP_PIXELS // image.width)
        for start in range(0, image.height, rows):
            stop = min(image.height, start + rows)
            whole = start == 0 and stop == image.height
            strip = image if whole else image.crop((0, start, image.width, stop))
            stored[start:stop] = _eight_bits(strip, channels, top)
    return upright


def _eight_bits(image: Image.Image, channels: int, top: float) -> np.ndarray[Any, Any]:
    """Return a strip as uint8, (rows, width) or (rows, width, 3)."""
    if image.mode in _DEEP_MODES:
        grey = _scaled_to_eight(np.asarray(image), top)
        return grey if channels == 1 else np.repeat(grey[:, :, None], channels, axis=2)
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba)
    return np.asarray(image.convert("L" if channels == 1 else "RGB"))


def _scaled_to_eight(values: np.ndarray[Any, Any], top: float) -> Pixels:
    known = np.nan_to_num(values.astype(np.float64), posinf=top)
    scaled: Pixels = np.clip(known / top * 255, 0, 255).astype(np.uint8)
    return scaled


def _white_of(image: Image.Image) -> float:
    """Return the value that is white: 16 bits, or 8 where a floating-point image stays below."""
    if image.mode != "F":
        return 65535.0
    _, highest = image.getextrema()
    return 65535.0 if float(highest) > 255 else 255.0  # type: ignore[arg-type]  # noqa: PLR2004 - one band


def _flips(image: Image.Image) -> tuple[bool, bool, bool]:
    """Return whether rows, columns and axes are exchanged, as the camera has noted."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a note that cannot be read is none
        orientation = 1
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
    """Return a view of an array in which an image lies as it is stored in its file."""
    stored = upright.swapaxes(0, 1) if axes else upright
    stored = stored[::-1] if rows else stored
    return stored[:, ::-1] if columns else stored


# -- resizing ----------------------------------------------------------------------------------


def resize_image(
    image_HWC: np.ndarray[Any, Any],
    height: int,
    width: int,
    resize: Literal["crop", "squash"],
) -> Pixels:
    """Bring an image to a size: (H, W, C) to (height, width, C), uint8.

    `crop` scales until the image covers the target and cuts at the centre; `squash` scales each
    side alone. Shrinking averages over the area, enlarging interpolates cubically. Of an image that
    enlarging would stretch far beyond the target, only what is seen of it is scaled.
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
    top, left = (new_height - height) // 2, (new_width - width) // 2
    if not shrinks and new_height * new_width > _MOST_STRETCHED * height * width:
        image_HWC, new_height, top = _seen(image_HWC, 0, new_height, top, height)
        image_HWC, new_width, left = _seen(image_HWC, 1, new_width, left, width)
    method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    scaled = cv2.resize(
        np.ascontiguousarray(image_HWC), (new_width, new_height), interpolation=method
    )
    cut = scaled.reshape(new_height, new_width, channels)[top : top + height, left : left + width]
    return np.ascontiguousarray(cut)


def _seen(
    image_HWC: np.ndarray[Any, Any], axis: int, scaled: int, first: int, count: int
) -> tuple[np.ndarray[Any, Any], int, int]:
    """Cut an image along an axis to what a cut of its enlargement shows.

    Args:
        image_HWC: the image.
        axis: 0 for rows, 1 for columns.
        scaled: the side of the enlarged image.
        first: where the cut begins in it.
        count: how much is cut.

    Returns:
        The part, the side that it is to be enlarged to, and where the cut begins in that.
    """
    side = image_HWC.shape[axis]
    start = max(0, first * side // scaled - _CUBIC_MARGIN)
    stop = min(side, -(-(first + count) * side // scaled) + _CUBIC_MARGIN)
    before = round(start * scaled / side)
    part = image_HWC[start:stop] if axis == 0 else image_HWC[:, start:stop]
    return part, max(count, round(stop * scaled / side) - before), first - before
