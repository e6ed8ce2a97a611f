"""Decode one image, for the prepared store, the evaluation and the package alike.

This module and its imports are copied into every packaged model, so they import only numpy, OpenCV,
Pillow and each other.

Common JPEG and PNG files are decoded by OpenCV once they are known to be complete; all other files
of 8 bits are decoded by Pillow. What holds other values is mapped to 8 bits by the range of its
data set. Headers are checked before pixels, and images that are decoded concurrently share a memory
budget.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.file_values import deep_file, may_be_deep
from patchline.pipeline.data.pixel_values.pixel_mapping import (
    PLAIN,
    DeepFile,
    FileValues,
    PixelMapping,
    UndecodableImageError,
    ValueFit,
    orientation_in,
)
from patchline.pipeline.data.pixel_values.png_values import PlainPng, plain_png
from patchline.pipeline.data.pixel_values.tiff_values import tiff_page
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of, why_not_read
from patchline.pipeline.data.reading.jpeg_wholeness import JpegFrame, jpeg_frame, lacks_data
from patchline.pipeline.data.reading.pillow_decoding import (
    OnFit,
    OnOpacity,
    Pixels,
    map_pixels,
    turn_upright,
    upright_pixels,
)
from patchline.pipeline.data.reading.reduced_values import read_reduced_bits

__all__ = [
    "MAX_PIXELS",
    "ImageHeader",
    "JpegDecoder",
    "Pixels",
    "SharedBudget",
    "UndecodableImageError",
    "decode_image",
    "deep_values",
    "frame_count",
    "pillow_pixels",
    "read_header",
    "reserve_and_decode",
]

MAX_PIXELS = 178_956_970
"""Images with more pixels are refused as possible decompression bombs (Pillow's own limit)."""
MAX_SIDE = 1_000_000
"""Images with a longer side are refused."""

_COPIED_FORMATS = {"WEBP", "AVIF", "JPEG2000", "HEIF"}
"""Their decoders hold several copies of the image, so they may have a quarter of the pixels."""
_ANIMATED = {"GIF", "WEBP", "AVIF", "HEIF"}
_PICTURES = 0xB002
"""Of a JPEG file with several pictures, the list of them."""
_GAIN_MAPS = (b"hdrgm:", b"HDRGainMap", b"iso:ts:21496")
"""In such a file, the second picture only brightens the first."""
_TRAILING_BYTES = 64  # some cameras write a little behind the end marker
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_JPEG_MODES = {1: "L", 3: "RGB"}
_COPIES = 4
_COMMON_BYTES = 4
"""Of a pixel; larger ones count several times."""
_FEW_PIXELS = 1 << 16
"""Images with no more are decoded without waiting for a share of the budget."""
_LONGEST_REASON = 200

# Pillow warns about metadata and large images; whatever matters here raises an error.
warnings.filterwarnings("ignore", module=r"PIL(\..*)?$")


class ImageHeader(NamedTuple):
    """The properties that an image file's header states."""

    width: int
    height: int
    mode: str
    """Pillow's name of the pixel format: `RGB`, `L`, `P`, `I;16`, …; for one that it does not have,
    the type of the values and their number: `uint8 x 5`."""


class JpegDecoder(Protocol):
    """Decodes a JPEG file to (H, W, 3), as it is stored; None if another decoder has to."""

    def __call__(self, data: bytes, frame: JpegFrame, /, *, strict: bool) -> Pixels | None:
        """Decode; if `strict`, return only an image of which nothing is missing."""


class SharedBudget:
    """An amount that threads share; a thread that asks for more than is left waits."""

    def __init__(self, amount: int) -> None:
        self._amount = self._left = amount
        self._changed = threading.Condition()

    @contextmanager
    def share(self, amount: int) -> Iterator[None]:
        """Reserve an amount, at most all of it, while the block runs."""
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


def decode_image(
    data: bytes,
    channels: int,
    jpeg_decoder: JpegDecoder | None = None,
    mapping: PixelMapping = PLAIN,
) -> Pixels:
    """Decode an image file to uint8 (height, width, channels), the right way up.

    Transparent pixels are blended onto white.

    Args:
        data: the file.
        channels: 1 or 3.
        jpeg_decoder: see `reserve_and_decode`.
        mapping: what becomes of values that are not of 8 bits.

    Raises:
        UndecodableImageError: with the reason, if the bytes are not a complete image.
    """
    with reserve_and_decode(
        data, channels, jpeg_decoder=jpeg_decoder, mapping=mapping
    ) as pixels_HWC:
        return pixels_HWC


@contextmanager
def reserve_and_decode(
    data: bytes,
    channels: int,
    *,
    known_whole: bool = False,
    on_header: Callable[[ImageHeader], None] | None = None,
    jpeg_decoder: JpegDecoder | None = None,
    mapping: PixelMapping = PLAIN,
    on_fit: OnFit | None = None,
    on_opacity: OnOpacity | None = None,
) -> Iterator[Pixels]:
    """Decode an image like `decode_image` and reserve its memory while the block runs.

    Threads that decode many images use this to stay within the shared budget.

    Args:
        data: the file.
        channels: 1 or 3.
        known_whole: whether these bytes are known to be complete from an earlier decoding.
        on_header: called with what the header states, before the pixels are decoded.
        jpeg_decoder: decodes common JPEG files, faster than OpenCV and Pillow, which decode those
            for which it returns None.
        mapping: what becomes of values that are not of 8 bits, and which bands are used.
        on_fit: called with how the values fit the range that maps them.
        on_opacity: called with the opacity of an image of 8 bits that has one, rows by rows.

    Raises:
        UndecodableImageError: with the reason, if the bytes are not a complete image, or nothing
            says what their values mean.
    """
    with _failures_named():
        frame = jpeg_frame(data) if data.startswith(_JPEG_START) else None
        png = plain_png(data) if data.startswith(_PNG_START) else None
        deep = None if frame or png else deep_file(data, format_of(data[:HEAD_BYTES]))
        header = _build_header(frame, png) or _header(data, deep)
        work = _check_work(data, header.width, header.height, deep)
    if on_header:
        on_header(header)
    with _pixels_in_flight.share(work) if work > _FEW_PIXELS else nullcontext():
        if deep:
            with _failures_named():
                mapped_HWC = map_pixels(deep.read(), channels, mapping, on_fit)
            yield mapped_HWC
            return
        with _failures_named():
            common = frame if frame and _is_common(data, frame) else None
            in_color = jpeg_decoder if channels > 1 and not mapping.bands else None
            decode = partial(in_color, data, common) if in_color and common else None
            pixels = decode(strict=True) if decode and not known_whole else None
            if pixels is None:
                if frame and not known_whole and lacks_data(data, frame):
                    raise UndecodableImageError("the file ends too early")
                pixels = decode(strict=False) if decode else None
            if pixels is None and not mapping.bands:
                pixels = _decode_fast(data, channels, common, png)
            if pixels is None:
                pixels = _decode_strict(data, channels, mapping, on_opacity)
            elif known := frame or png:
                stored_HWC = pixels if pixels.ndim == 3 else pixels[:, :, None]  # noqa: PLR2004
                pixels = turn_upright(stored_HWC, orientation_in(known.exif))
            if on_fit:
                on_fit(ValueFit(reduced=0 if frame or png else read_reduced_bits(data)))
        yield pixels


@contextmanager
def deep_values(
    data: bytes, on_header: Callable[[ImageHeader], None] | None = None
) -> Iterator[FileValues | None]:
    """Read the values of a file that does not simply hold 8 bits per color; None if it does.

    Their memory is reserved while the block runs.

    Args:
        data: the file.
        on_header: called with what the header states, before the values are read.

    Raises:
        UndecodableImageError: with the reason, if they cannot be read.
    """
    with _failures_named():
        deep = deep_file(data, format_of(data[:HEAD_BYTES])) if may_be_deep(data) else None
        header = _header(data, deep) if deep else None
    if deep is None or header is None:
        yield None
        return
    if on_header:
        on_header(header)
    with _pixels_in_flight.share(_check_work(data, header.width, header.height, deep)):
        with _failures_named():
            values = deep.read()
        yield values


def read_header(data: bytes) -> ImageHeader:
    """Return the header of an image file, without decoding the image.

    Raises:
        UndecodableImageError: with the reason, if the format is not supported or it is too large.
    """
    with _failures_named():
        return _header(data, deep_file(data, format_of(data[:HEAD_BYTES])))


def frame_count(data: bytes) -> int:
    """Return the number of frames or pages of an image file that can be read; the first is used.

    So are pictures of a JPEG file (MPO), but for previews and maps of its brightness.
    """
    name = format_of(data[:HEAD_BYTES])
    if name == "TIFF":
        return tiff_page(data).pages
    several = (name == "PNG" and b"acTL" in data) or (name == "JPEG" and b"MPF\0" in data)
    if name not in _ANIMATED and (not several or any(each in data for each in _GAIN_MAPS)):
        return 1
    try:
        with _open(data) as image:
            if name == "JPEG":
                listed = getattr(image, "mpinfo", {}).get(_PICTURES, [{}])
                return sum("Thumbnail" not in str(each) for each in listed)
            return int(getattr(image, "n_frames", 1))
    except Exception:  # noqa: BLE001 - what follows the first frame may be damaged
        return 1


def pillow_pixels(
    image: Image.Image,
    channels: int,
    mapping: PixelMapping = PLAIN,
    on_fit: OnFit | None = None,
) -> Pixels:
    """Return the pixels of an image that Pillow has opened, as `decode_image` returns a file's.

    Args:
        image: the image.
        channels: 1 or 3.
        mapping: what becomes of values that are not of 8 bits, and which bands are used.
        on_fit: called with how the values fit the range that maps them.

    Raises:
        UndecodableImageError: with the reason, if its file is incomplete, or it has no pixels.
    """
    with _failures_named():
        if not image.width or not image.height:
            raise UndecodableImageError("an image without pixels is not an image")
        return upright_pixels(image, channels, mapping, on_fit=on_fit)


@contextmanager
def _failures_named() -> Iterator[None]:
    """Turn any exception of a decoder into the reason why the image cannot be read."""
    try:
        yield
    except UndecodableImageError:
        raise
    except MemoryError as error:
        raise UndecodableImageError("there is not enough memory to decode it") from error
    except Exception as error:  # decoders raise many types
        raise UndecodableImageError(_in_words(error)) from error


def _in_words(error: Exception) -> str:
    """Return a decoder's message in one line; the most common ones are reworded."""
    reason = " ".join(str(error).split())
    if "truncated" in reason.lower():
        return "the file ends too early"
    if "cannot identify image file" in reason:
        return "not an image that can be read"
    if not isinstance(error, (OSError, ValueError, SyntaxError)) or not reason:
        reason = f"its decoder failed ({type(error).__name__}{': ' if reason else ''}{reason})"
    shown = "".join(each if each.isprintable() else "?" for each in reason)
    return shown if len(shown) <= _LONGEST_REASON else f"{shown[: _LONGEST_REASON - 1]}…"


def _header(data: bytes, deep: DeepFile | None) -> ImageHeader:
    if not data:
        raise UndecodableImageError("the file is empty")
    if deep:
        header = ImageHeader(deep.width, deep.height, deep.mode)
    else:
        with _open(data) as image:
            header = ImageHeader(image.width, image.height, image.mode)
    _check_work(data, header.width, header.height, deep)
    return header


def _build_header(frame: JpegFrame | None, png: PlainPng | None) -> ImageHeader | None:
    """Return the header of a common JPEG or PNG file, as Pillow would."""
    if frame and frame.components in _JPEG_MODES:
        return ImageHeader(frame.width, frame.height, _JPEG_MODES[frame.components])
    return ImageHeader(png.width, png.height, "L" if png.is_grey else "RGB") if png else None


def _check_work(data: bytes, width: int, height: int, deep: DeepFile | None) -> int:
    """Return the memory that decoding needs, in pixels of a common format, or refuse the image."""
    weight = _COPIES if format_of(data[:HEAD_BYTES]) in _COPIED_FORMATS else 1
    weight = max(weight, -(-deep.pixel_bytes // _COMMON_BYTES) if deep else 1)
    if max(width, height) > MAX_SIDE:
        raise UndecodableImageError(
            f"the image has {width}x{height} pixels, but at most {MAX_SIDE} per side are allowed"
        )
    if width * height * weight > MAX_PIXELS:
        most = MAX_PIXELS // weight
        raise UndecodableImageError(
            f"the image has {width}x{height} pixels, but at most {most} in all are allowed"
        )
    return width * height * weight


def _open(data: bytes) -> Image.Image:
    """Open the image with the decoder of its own format only, without decoding it."""
    name = format_of(data[:HEAD_BYTES])
    if name is None:
        raise UndecodableImageError(why_not_read(data[:HEAD_BYTES]))
    if name == "HEIF":
        _register_heif()
    try:
        return Image.open(io.BytesIO(data), formats=(name,))
    except KeyError:
        raise UndecodableImageError(
            f"the installed Pillow cannot read {name} files; convert the file to PNG or JPEG"
        ) from None


def _register_heif() -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False)


def _is_common(data: bytes, frame: JpegFrame) -> bool:
    """Return whether every decoder reads a JPEG file alike; CMYK and Adobe's RGB are not so."""
    return (
        frame.components in _JPEG_MODES
        and _JPEG_END in data[-_TRAILING_BYTES:]
        and b"Adobe" not in data[:4096]
    )


def _decode_fast(
    data: bytes, channels: int, common: JpegFrame | None, png: PlainPng | None
) -> Pixels | None:
    if png:
        return _in_opencv(png.data, channels) if _PNG_END in data[-_TRAILING_BYTES:] else None
    return _in_opencv(data, channels) if common else None


def _in_opencv(data: bytes, channels: int) -> Pixels | None:
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    flag |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        return None
    return pixels if pixels is None or pixels.size else None


def _decode_strict(
    data: bytes, channels: int, mapping: PixelMapping, on_opacity: OnOpacity | None
) -> Pixels:
    with _open(data) as image:
        return upright_pixels(image, channels, mapping, on_opacity)
