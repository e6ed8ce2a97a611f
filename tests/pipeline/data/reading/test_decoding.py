"""One decoder for every format: its pixels against Pillow's, and what it refuses."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from patchline.pipeline.data.reading.decoding import MAX_PIXELS, UndecodableImageError, decode_image
from patchline.pipeline.data.reading.resizing import ResizePolicy, resize_image
from tests.conftest import draw_photo

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
LOSSY_TOLERANCE = 3  # two JPEG decoders may round differently


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """Return the image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def photo(height: int = 24, width: int = 32) -> Pixels:
    """Return an RGB image that is neither square nor symmetric."""
    return np.ascontiguousarray(draw_photo(2, 0, 48)[:height, :width])


def smooth() -> Pixels:
    """Return an RGB gradient (24, 32, 3), which JPEG hardly changes."""
    rows, columns = np.mgrid[0:24, 0:32]
    return np.stack([rows * 9, columns * 7, 255 - rows * 5], axis=-1).astype(np.uint8)


def png_of_zeros(width: int, height: int) -> bytes:
    """Return a greyscale PNG, all black, of a few bytes for many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    line = bytes(width + 1)
    packer = zlib.compressobj(9)
    lines = b"".join(packer.compress(line) for _ in range(min(height, 14_000))) + packer.flush()
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", lines), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_formats_give_back_the_pixels(file_format: str, channels: int) -> None:
    """A lossless file decodes to exactly the pixels that were written."""
    pixels = photo()[:, :, 0] if channels == 1 else photo()
    decoded = decode_image(encoded(Image.fromarray(pixels), file_format), channels)
    assert decoded.dtype == np.uint8
    assert decoded.shape == (24, 32, channels)
    assert np.array_equal(decoded, pixels.reshape(24, 32, channels))


def test_lossless_webp_gives_back_the_pixels() -> None:
    """A lossless WebP file decodes to exactly the pixels that were written."""
    decoded = decode_image(encoded(Image.fromarray(photo()), "WEBP", lossless=True), 3)
    assert np.array_equal(decoded, photo())


@pytest.mark.parametrize(("file_format", "tolerance"), [("JPEG", 12), ("WEBP", 20), ("GIF", 40)])
def test_lossy_formats_come_close(file_format: str, tolerance: int) -> None:
    """A lossy file decodes to nearly the pixels that were written."""
    decoded = decode_image(encoded(Image.fromarray(smooth()), file_format), 3)
    assert decoded.shape == (24, 32, 3)
    assert np.abs(decoded.astype(int) - smooth().astype(int)).max() <= tolerance


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    ("file_format", "options"),
    [("PNG", {}), ("JPEG", {"quality": 90}), ("JPEG", {"quality": 75, "progressive": True})],
)
def test_fast_path_equals_pillow(
    file_format: str, options: dict[str, Any], mode: str, channels: int
) -> None:
    """The fast decoder and Pillow see the same picture, up to rounding."""
    data = encoded(Image.fromarray(photo()).convert(mode), file_format, **options)
    with Image.open(io.BytesIO(data)) as opened:
        reference = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    decoded = decode_image(data, channels)
    difference = decoded.astype(int) - reference.reshape(decoded.shape).astype(int)
    assert np.abs(difference).max() <= LOSSY_TOLERANCE


def test_greyscale_file_as_colour_has_equal_channels() -> None:
    """A greyscale image decoded to three channels has the same values in each."""
    grey = photo()[:, :, 1]
    decoded = decode_image(encoded(Image.fromarray(grey), "PNG"), 3)
    assert all(np.array_equal(decoded[:, :, channel], grey) for channel in range(3))


def test_palette_is_looked_up() -> None:
    """A palette image decodes to its colours, not to its indices."""
    indexed = Image.new("P", (5, 4), 7)
    indexed.putpalette([0] * 21 + [10, 200, 30])
    for file_format in ("PNG", "GIF", "BMP"):
        decoded = decode_image(encoded(indexed, file_format), 3)
        assert (decoded == (10, 200, 30)).all(), file_format


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_on_white(file_format: str) -> None:
    """A transparent pixel becomes white, a half transparent one is mixed with white."""
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[:, :, 0] = 200
    rgba[:, 2:4, 3], rgba[:, 4:, 3] = 128, 255
    options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
    decoded = decode_image(encoded(Image.fromarray(rgba), file_format, **options), 3)
    assert (decoded[:, :2] == 255).all()
    assert np.abs(decoded[:, 2:4].astype(int) - (227, 127, 127)).max() <= 1
    assert (decoded[:, 4:] == (200, 0, 0)).all()


def test_transparent_palette_entry_and_grey_alpha_are_laid_on_white() -> None:
    """Transparency in a palette or beside greyscale is laid on white as well."""
    indexed = Image.new("P", (4, 4), 1)
    indexed.putpalette([0, 0, 0, 50, 60, 70])
    assert (decode_image(encoded(indexed, "PNG", transparency=1), 3) == 255).all()
    grey_alpha = Image.new("LA", (4, 4), (10, 0))
    assert (decode_image(encoded(grey_alpha, "PNG"), 1) == 255).all()
    colour_key = Image.new("RGB", (4, 4), (1, 2, 3))
    assert (decode_image(encoded(colour_key, "PNG", transparency=(1, 2, 3)), 3) == 255).all()


def test_transparent_colour_is_found_behind_a_long_note() -> None:
    """A transparent colour is laid on white although its chunk comes late in the file."""
    note = PngImagePlugin.PngInfo()
    note.add_text("Comment", "long " * 1000)
    colour_key = Image.new("RGB", (4, 4), (1, 2, 3))
    data = encoded(colour_key, "PNG", transparency=(1, 2, 3), pnginfo=note)
    assert data.index(b"tRNS") > 4096
    assert (decode_image(data, 3) == 255).all()


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(file_format: str) -> None:
    """A 16-bit image keeps its brightness in 8 bits."""
    values = np.linspace(0, 65535, 24 * 32).reshape(24, 32).astype(np.uint16)
    decoded = decode_image(encoded(Image.fromarray(values), file_format), 1)
    assert np.abs(decoded[:, :, 0].astype(float) - values / 257).max() <= 1


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_keeps_its_colours(file_format: str) -> None:
    """A CMYK image shows the colours that Pillow shows, not inverted ones."""
    cmyk = Image.fromarray(smooth()).convert("CMYK")
    decoded = decode_image(encoded(cmyk, file_format), 3)
    reference = np.asarray(cmyk.convert("RGB")).astype(int)
    assert np.abs(decoded.astype(int) - reference).max() <= 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_image_is_turned_the_right_way_up(file_format: str, orientation: int) -> None:
    """The orientation that a camera noted is applied, in all formats that hold it."""
    upright = smooth()
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright, 1), 7: upright.swapaxes(0, 1)[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    options = {"lossless": True} if file_format == "WEBP" else {}
    decoded = decode_image(encoded(image, file_format, exif=exif, **options), 3)
    assert decoded.shape == upright.shape
    assert np.abs(decoded.astype(int) - upright.astype(int)).max() <= 14


def test_first_frame_of_an_animation_counts() -> None:
    """An animated GIF decodes to its first frame."""
    first, second = (Image.new("RGB", (6, 6), colour) for colour in ("red", "blue"))
    data = encoded(first, "GIF", save_all=True, append_images=[second])
    assert (decode_image(data, 3) == (255, 0, 0)).all()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_file_is_refused_with_a_reason(file_format: str, share: float) -> None:
    """Any part of an image file that is not the whole is refused with a reason."""
    data = encoded(Image.fromarray(photo()), file_format)
    with pytest.raises(UndecodableImageError) as raised:
        decode_image(data[: int(len(data) * share)], 3)
    assert str(raised.value).strip()


@pytest.mark.parametrize(("file_format", "without_pixels"), [("JPEG", 2), ("PNG", 40)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_beginning_of_a_file_passes_as_an_image(
    file_format: str, without_pixels: int, data: st.DataObject
) -> None:
    """A file that is cut off within its pixels is never taken for an image."""
    whole = encoded(Image.fromarray(photo()), file_format)
    length = data.draw(st.integers(0, len(whole) - without_pixels - 1), label="length")
    with pytest.raises(UndecodableImageError):
        decode_image(whole[:length], 3)


def test_png_with_a_flipped_byte_is_refused() -> None:
    """A PNG whose checksum does not hold is refused although both ends are intact."""
    data = bytearray(encoded(Image.fromarray(photo()), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(UndecodableImageError):
        decode_image(bytes(data), 3)


def test_png_without_its_middle_is_refused() -> None:
    """A PNG that ends as it should but lacks its middle is refused."""
    data = encoded(Image.fromarray(photo()), "PNG")
    with pytest.raises(UndecodableImageError, match="ends too early"):
        decode_image(data[: len(data) // 2] + data[-12:], 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"Dear diary, today I saw a flower.\n", "not an image"),
        (b"\xff\xd8\xff\xd9", "."),
        (b"\x89PNG\r\n\x1a\nIEND\xaeB`\x82", "."),
        (bytes(4096), "not an image"),
    ],
    ids=["empty", "text", "JPEG markers alone", "PNG markers alone", "zeros"],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    """Bytes that never were an image are refused with a reason, never with another error."""
    with pytest.raises(UndecodableImageError, match=reason):
        decode_image(data, 3)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"]))
def test_random_bytes_raise_nothing_else(tail: bytes, start: bytes) -> None:
    """Random bytes are refused with `UndecodableImageError` alone."""
    with pytest.raises(UndecodableImageError):
        decode_image(start + tail, 3)


@pytest.mark.parametrize(
    ("width", "height"),
    [(13_400, 13_400), (1000, 10_000_000)],
    ids=["a little too large", "far too large"],
)
def test_decompression_bomb_is_refused(width: int, height: int) -> None:
    """A small file that would unpack to too many pixels is refused."""
    assert width * height > MAX_PIXELS
    data = png_of_zeros(width, height)
    assert len(data) < MAX_PIXELS / 500
    with pytest.raises(UndecodableImageError, match="pixels"):
        decode_image(data, 1)


@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_resize_leaves_an_image_of_the_right_size_alone(
    resize: ResizePolicy, channels: int
) -> None:
    """An image that has the wanted size keeps every pixel."""
    pixels = photo()[:, :, :channels]
    assert np.array_equal(resize_image(pixels, 24, 32, resize), pixels)


@settings(max_examples=60, deadline=None)
@given(
    source=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
    resize=st.sampled_from(["crop", "squash", "pad"]),
    value=st.integers(0, 255),
)
def test_resize_gives_the_size_and_keeps_a_flat_colour(
    source: tuple[int, int],
    target: tuple[int, int],
    channels: int,
    resize: ResizePolicy,
    value: int,
) -> None:
    """Every image becomes the size asked for, and one flat colour stays that colour."""
    resized = resize_image(np.full((*source, channels), value, np.uint8), *target, resize)
    assert resized.shape == (*target, channels)
    assert resized.dtype == np.uint8
    assert resized.flags["C_CONTIGUOUS"]
    assert (resized == value).all()


def test_crop_cuts_the_centre_without_distortion() -> None:
    """`crop` of an image that is too wide keeps its middle columns pixel by pixel."""
    wide = photo(24, 32)
    assert np.array_equal(resize_image(wide, 24, 24, "crop"), wide[:, 4:28])
    tall = np.ascontiguousarray(wide.swapaxes(0, 1))
    assert np.array_equal(resize_image(tall, 24, 24, "crop"), tall[4:28])


def test_squash_keeps_the_edges() -> None:
    """`squash` shows the whole image where `crop` loses its sides."""
    image = np.zeros((16, 64, 1), np.uint8)
    image[:, :8], image[:, -8:] = 250, 250
    squashed = resize_image(image, 16, 16, "squash")
    assert (squashed[:, [0, 1, 14, 15]] == 250).all()
    assert (squashed[:, 2:14] == 0).all()
    assert (resize_image(image, 16, 16, "crop") == 0).all()


@settings(max_examples=60, deadline=None)
@given(
    source=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
)
def test_pad_shows_the_whole_image_in_its_proportions(
    source: tuple[int, int], target: tuple[int, int], channels: int
) -> None:
    """`pad` scales both sides alike, and fills the border with the mean."""
    image = np.random.default_rng(0).integers(0, 256, (*source, channels), dtype=np.uint8)
    scale = min(target[0] / source[0], target[1] / source[1])
    inner = [max(1, round(side * scale)) for side in source]
    expected = resize_image(image, inner[0], inner[1], "squash")
    padded = resize_image(image, *target, "pad")
    top, left = (target[0] - inner[0]) // 2, (target[1] - inner[1]) // 2
    shown = np.zeros(target, bool)
    shown[top : top + inner[0], left : left + inner[1]] = True
    assert np.array_equal(padded[shown].reshape(expected.shape), expected)
    assert inner[0] == target[0] or inner[1] == target[1]
    difference = np.abs(padded[~shown] - expected.reshape(-1, channels).mean(axis=0))
    assert not difference.size or difference.max() <= 0.5


def test_shrinking_averages_over_the_area() -> None:
    """An image at a quarter of its size holds the mean of each block of sixteen pixels."""
    pixels = photo(24, 32)
    blocks = pixels.reshape(6, 4, 8, 4, 3).astype(float).mean(axis=(1, 3))
    smaller = resize_image(pixels, 6, 8, "squash")
    assert np.abs(smaller - blocks).max() <= 0.51
