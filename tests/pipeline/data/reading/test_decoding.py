"""One decoder for every format: its pixels against Pillow's, and what it refuses."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from patchline.pipeline.data.reading import image_formats
from patchline.pipeline.data.reading.decoding import (
    MAX_PIXELS,
    UndecodableImageError,
    decode_image,
    read_header,
    reserve_and_decode,
)
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.jpeg_wholeness import jpeg_frame
from patchline.pipeline.data.reading.resizing import ResizePolicy, resize_image
from patchline.plugins.tools.label.pool import Pool
from patchline.plugins.tools.label.server.application import picture
from tests.conftest import draw_photo, encoded
from tests.pipeline.data.pixel_values.made_files import png_chunk, png_file, refused, tiff_file

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def photo(height: int = 24, width: int = 32) -> Pixels:
    """Return an RGB image that is neither square nor symmetric."""
    return np.ascontiguousarray(draw_photo(2, 0, 48)[:height, :width])


def smooth() -> Pixels:
    """Return an RGB gradient (24, 32, 3), which JPEG hardly changes."""
    rows, columns = np.mgrid[0:24, 0:32]
    return np.stack([rows * 9, columns * 7, 255 - rows * 5], axis=-1).astype(np.uint8)


def png_of_zeros(width: int, height: int) -> bytes:
    """Return a greyscale PNG, all black, of a few bytes for many pixels."""
    lines = zlib.compress(bytes((width + 1) * min(height, 14_000_000 // width)), 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", lines), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(itertools.starmap(png_chunk, parts))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    ("file_format", "options", "tolerance"),
    [
        ("PNG", {}, 0), ("BMP", {}, 0), ("TIFF", {}, 0), ("PPM", {}, 0),
        ("WEBP", {"lossless": True}, 0), ("GIF", {}, 0), ("JPEG", {"quality": 90}, 1),
        ("JPEG", {"quality": 75, "progressive": True}, 1), ("WEBP", {}, 0),
    ],
)  # fmt: skip
def test_the_pixels_are_those_of_pillow(
    file_format: str, options: dict[str, Any], tolerance: int, mode: str, channels: int
) -> None:
    """Of every format, up to the rounding of JPEG and of a grey value."""
    data = encoded(Image.fromarray(photo()).convert(mode), file_format, **options)
    with Image.open(io.BytesIO(data)) as opened:
        reference = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    decoded = decode_image(data, channels)
    assert decoded.dtype == np.uint8
    assert decoded.shape == (24, 32, channels)
    difference = decoded.astype(int) - reference.reshape(decoded.shape)
    assert np.abs(difference).max() <= tolerance + 2 * (channels == 1 or tolerance)


def test_palette_of_the_first_frame_is_looked_up() -> None:
    """A palette image decodes to its colours, not to its indices; of an animation, one counts."""
    indexed = Image.new("P", (5, 4), 7)
    indexed.putpalette([0] * 21 + [10, 200, 30])
    more = {"save_all": True, "append_images": [Image.new("RGB", (5, 4), "blue")]}
    for file_format in ("PNG", "BMP", "GIF"):
        options: dict[str, Any] = more if file_format == "GIF" else {}
        decoded = decode_image(encoded(indexed, file_format, **options), 3)
        assert (decoded == (10, 200, 30)).all(), file_format


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_on_white(file_format: str) -> None:
    """A transparent pixel becomes white, a half transparent one is mixed with white."""
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[:, :, 0] = 200
    rgba[:, 2:4, 3], rgba[:, 4:, 3] = 128, 255
    options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
    decoded = decode_image(encoded(rgba, file_format, **options), 3)
    assert (decoded[:, :2] == 255).all()
    assert np.abs(decoded[:, 2:4].astype(int) - (227, 127, 127)).max() <= 1
    assert (decoded[:, 4:] == (200, 0, 0)).all()


def test_other_kinds_of_transparency_are_laid_on_white_too() -> None:
    """In a palette, beside greyscale, and of one colour, whose chunk may come late in the file."""
    note = PngImagePlugin.PngInfo()
    note.add_text("Comment", "long " * 1000)
    indexed = Image.new("P", (4, 4), 1)
    indexed.putpalette([0, 0, 0, 50, 60, 70])
    cases: list[tuple[Image.Image, dict[str, Any]]] = [
        (indexed, {"transparency": 1}),
        (Image.new("LA", (4, 4), (10, 0)), {}),
        (Image.new("RGB", (4, 4), (1, 2, 3)), {"transparency": (1, 2, 3), "pnginfo": note}),
    ]
    for image, options in cases:
        assert (decode_image(encoded(image, "PNG", **options), 3) == 255).all()


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_keeps_its_colours(file_format: str) -> None:
    """A CMYK image shows the colours that Pillow shows, not inverted ones."""
    cmyk = Image.fromarray(smooth()).convert("CMYK")
    decoded = decode_image(encoded(cmyk, file_format), 3)
    assert np.abs(decoded - np.asarray(cmyk.convert("RGB"), int)).max() <= 12


_XMP = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
_UPRIGHT: dict[int, Callable[[Any], Any]] = {
    1: lambda stored: stored, 2: np.fliplr, 3: lambda stored: np.rot90(stored, 2), 4: np.flipud,
    5: lambda stored: stored.swapaxes(0, 1), 6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored.swapaxes(0, 1), 2), 8: np.rot90,
}  # fmt: skip


def files_of_a_photograph(orientation: int, order: str, kind: int) -> dict[str, bytes]:
    """Return files with an orientation of type 3 (SHORT) or 4 (LONG), 0 for none; XMP says 6."""
    number = struct.pack(f"{order}{'H' if kind == 3 else 'I'}", orientation).ljust(4, b"\0")
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 1)
    exif = start + struct.pack(f"{order}HHI", 0x0112, kind, 1) + number + bytes(4)
    marked = {"exif": b"Exif\0\0" + exif} if orientation else {}
    note = PngImagePlugin.PngInfo()
    note.add_itxt("XML:com.adobe.xmp", _XMP.decode())
    rgb, grey_HW1 = Image.fromarray(smooth()), smooth()[:, :, 1:2]
    tags: dict[int, tuple[int, list[int]]] = {700: (1, list(_XMP))}
    tags |= {274: (kind, [orientation])} if orientation else {}
    chunk = png_chunk(b"eXIf", exif) if orientation else b""
    exact: dict[str, Any] = {"quality": 98, "subsampling": 0, "xmp": _XMP, **marked}
    return {
        "jpeg": encoded(rgb, "JPEG", **exact),
        "cmyk": encoded(rgb.convert("CMYK"), "JPEG", **exact),
        "png": encoded(rgb, "PNG", pnginfo=note, **marked),
        "palette": encoded(rgb.quantize(250), "PNG", pnginfo=note, **marked),
        "png16": png_file(smooth().astype("u2") * 257, chunks=chunk),
        "webp": encoded(rgb, "WEBP", lossless=True, xmp=_XMP, **marked),
        "tiff": tiff_file(smooth(), 2, order=order, tags=tags),
        "tiff16": tiff_file(smooth().astype("u2") * 257, 2, order=order, tags=tags),
        "white is zero": tiff_file(255 - grey_HW1, 0, order=order, tags=tags),
        "white16": tiff_file(65535 - grey_HW1.astype("u2") * 257, 0, order=order, tags=tags),
    }


@pytest.mark.parametrize(("order", "kind"), [("<", 3), (">", 4)])
def test_one_photograph_is_upright_in_every_format(order: str, kind: int) -> None:
    """By its EXIF data alone, in the store, a package, and on the page for labels."""
    for orientation in range(9):
        for name, data in files_of_a_photograph(orientation, order, kind).items():
            stored = smooth()[:, :, 1:2] if "white" in name else smooth()
            upright = _UPRIGHT[orientation or 1](stored).astype(int)
            folder = Path(f"{name}-{orientation}")
            folder.mkdir()
            (folder / "image.png").write_bytes(data)
            pool = Pool(folder, folder)
            [image] = pool.images.values()
            shown = decode_image(picture(pool, image, 256).content, 3)
            for pixels in (decode_image(data, 3), decode_image(data, 3, decode_jpeg), shown):
                assert np.abs(pixels - upright).max() <= 14, (name, orientation)


@pytest.mark.parametrize(
    ("file_format", "without_pixels"), [("JPEG", 2), ("PNG", 40), ("TIFF", 400), ("WEBP", 400)]
)
def test_no_beginning_of_a_file_passes_as_an_image(file_format: str, without_pixels: int) -> None:
    """A file that is cut off within its pixels is never taken for an image."""
    whole = encoded(photo(), file_format)
    for length in range(0, len(whole) - without_pixels, 17):
        with pytest.raises(UndecodableImageError):
            decode_image(whole[:length], 3)


_PNG = encoded(photo(), "PNG")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"Dear diary, today I saw a flower.\n", "not an image"),
        (b"\xff\xd8\xff\xd9", "."),
        (b"\x89PNG\r\n\x1a\nIEND\xaeB`\x82", "."),
        (_PNG[:200] + bytes([_PNG[200] ^ 255]) + _PNG[201:], "."),
        (_PNG[:200] + _PNG[-12:], "ends too early"),
    ],
    ids=["empty", "text", "JPEG markers", "PNG markers", "flipped byte", "no middle"],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    """Bytes that never were an image, or a whole one, are refused, never with another error."""
    refused(reason, data)


@pytest.mark.parametrize(("width", "height"), [(13_400, 13_400), (1000, 10_000_000)])
def test_decompression_bomb_is_refused(width: int, height: int) -> None:
    """A small file that would unpack to too many pixels is refused."""
    assert width * height > MAX_PIXELS
    refused("pixels", png_of_zeros(width, height), 1)


@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 4),
    channels=st.sampled_from([1, 3]),
    resize=st.sampled_from(["crop", "squash", "pad"]),
    value=st.integers(0, 255),
)
def test_resize_gives_the_size_and_keeps_a_flat_colour(
    sizes: tuple[int, int, int, int], channels: int, resize: ResizePolicy, value: int
) -> None:
    """Every image becomes the size asked for, and one flat colour stays that colour."""
    target = sizes[2:]
    resized = resize_image(np.full((*sizes[:2], channels), value, np.uint8), *target, resize)
    assert resized.shape == (*target, channels)
    assert resized.dtype == np.uint8
    assert resized.flags["C_CONTIGUOUS"]
    assert (resized == value).all()


def test_crop_cuts_the_centre_without_distortion() -> None:
    """Of an image that is too wide its middle columns stay pixel by pixel, of a fitting one all."""
    wide = photo(24, 32)
    tall = np.ascontiguousarray(wide.swapaxes(0, 1))
    assert np.array_equal(resize_image(wide, 24, 32, "crop"), wide)
    assert np.array_equal(resize_image(wide, 24, 24, "crop"), wide[:, 4:28])
    assert np.array_equal(resize_image(tall, 24, 24, "crop"), tall[4:28])


@given(sizes=st.tuples(*[st.integers(1, 60)] * 4), channels=st.sampled_from([1, 3]))
def test_pad_shows_the_whole_image_in_its_proportions(
    sizes: tuple[int, int, int, int], channels: int
) -> None:
    """`pad` scales both sides alike, and fills the border with the mean."""
    image = np.random.default_rng(0).integers(0, 256, (*sizes[:2], channels), dtype=np.uint8)
    height, width = target = sizes[2:]
    scale = min(height / sizes[0], width / sizes[1])
    inner = (max(1, round(sizes[0] * scale)), max(1, round(sizes[1] * scale)))
    expected = resize_image(image, *inner, "squash")
    padded = resize_image(image, *target, "pad")
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    shown = np.zeros(target, bool)
    shown[top : top + inner[0], left : left + inner[1]] = True
    assert np.array_equal(padded[shown].reshape(expected.shape), expected)
    assert inner[0] == height or inner[1] == width
    difference = np.abs(padded[~shown] - expected.reshape(-1, channels).mean(axis=0))
    assert difference.max(initial=0) <= 0.5


def test_shrinking_averages_over_the_area() -> None:
    """An image at a quarter of its size holds the mean of each block of sixteen pixels."""
    pixels = photo(24, 32)
    blocks = pixels.reshape(6, 4, 8, 4, 3).astype(float).mean(axis=(1, 3))
    assert np.abs(resize_image(pixels, 6, 8, "squash") - blocks).max() <= 0.51


def heif(orientation: int = 1) -> bytes:
    """Return a smooth photograph, which lossy compression changes little."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = io.BytesIO()
    file = pillow_heif.from_pillow(Image.fromarray(smooth()))
    file.save(content, quality=95, exif=exif.tobytes())
    return content.getvalue()


def test_a_heif_photograph_comes_close_and_is_turned_the_right_way_up() -> None:
    """Size, mode and pixels are those of the image, also of one stored on its side."""
    assert (read_header(heif())[:2], decode_image(heif(), 1).shape) == ((32, 24), (24, 32, 1))
    for orientation, expected in ((1, smooth()), (6, np.rot90(smooth(), -1))):
        assert np.abs(decode_image(heif(orientation), 3).astype(int) - expected).mean() < 4


def test_without_the_package_for_heif_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what to install."""
    monkeypatch.setattr(image_formats, "reads_heif", lambda: False)
    refused(r"need pillow-heif: pip install", heif())


CODINGS: list[dict[str, Any]] = [
    {"quality": 90},
    {"quality": 60, "progressive": True},
    {"quality": 75, "restart_marker_blocks": 2},
]


def jpeg(width: int, height: int, *, mode: str = "RGB", **options: Any) -> bytes:
    """Return a photograph as a JPEG file."""
    image = Image.fromarray(draw_photo(1, 3, 128)[:height, :width]).convert(mode)
    return encoded(image, "JPEG", **options)


def at_once(data: bytes) -> Any:
    """Return the image, if it is seen to be complete as it is decoded."""
    frame = jpeg_frame(data)
    assert frame is not None
    return decode_jpeg(data, frame, strict=True)


def answer(data: bytes, **options: Any) -> Any:
    """Return the pixels of a file, or why there are none."""
    try:
        with reserve_and_decode(data, 3, **options) as pixels_HWC:
            return pixels_HWC.copy()
    except UndecodableImageError as error:
        return str(error)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (33, 47), (100, 75)], ids=str)
def test_the_pixels_are_the_same(
    size: tuple[int, int], coding: dict[str, Any], subsampling: int
) -> None:
    """A prediction decodes with OpenCV what a store has from here."""
    data = jpeg(*size, subsampling=subsampling, **coding)
    assert np.array_equal(at_once(data), decode_image(data, 3))


def test_only_color_is_decoded_here() -> None:
    """Greyscale and CMYK files are left to the usual way."""
    assert at_once(jpeg(40, 24, mode="L")) is at_once(jpeg(40, 24, mode="CMYK")) is None


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_a_file_that_ends_early_is_never_whole(coding: dict[str, Any]) -> None:
    """Cut anywhere in its last scan, an end marker behind it, no file gives other pixels."""
    data = jpeg(40, 24, **coding)
    frame = jpeg_frame(data)
    assert frame is not None
    whole, refused = at_once(data), 0
    cuts = range(frame.data_start + 1, frame.data_end)
    for length in cuts:
        cut = data[:length] + b"\xff\xd9"
        found, usual = at_once(cut), answer(cut)
        assert found is None or np.array_equal(found, whole)
        assert isinstance(usual, str) or np.array_equal(usual, whole)
        refused += found is None
    assert refused > 0.9 * len(cuts)


def test_damaged_files_get_the_same_answer() -> None:
    """Bytes that are changed, removed or repeated give the same pixels, or the same refusal."""
    rng = np.random.default_rng(0)
    files = [jpeg(40, 24, **coding) for coding in CODINGS] + [
        files_of_a_photograph(number, order, 3)["jpeg"] for number, order in ((1, ">"), (6, "<"))
    ]
    seen = {"pixels": 0, "refused": 0}
    for number in range(400):
        data = bytearray(files[number % len(files)])
        for _ in range(int(rng.integers(1, 4))):
            place, kind = int(rng.integers(2, len(data) - 2)), rng.integers(3)
            if kind == 0:
                data[place] = rng.integers(256)
            elif kind == 1:
                del data[place : place + int(rng.integers(1, 9))]
            else:
                data[place:place] = data[place : place + 7]
        usual = answer(bytes(data))
        assert np.array_equal(answer(bytes(data), jpeg_decoder=decode_jpeg), usual), number
        seen["refused" if isinstance(usual, str) else "pixels"] += 1
    assert min(seen.values()) > 60


@pytest.mark.parametrize("place", [b"\xff\xda", b"\xff\xd9"], ids=["header", "end"])
def test_harmless_bytes_are_passed_over_in_silence(
    place: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some programs write bytes between the markers; OpenCV prints a line about each such file."""
    data = jpeg(40, 24, quality=90)
    odd = data.replace(place, b"abcdefg" + place)
    assert at_once(odd) is None
    for known_whole in (False, True):
        found = answer(odd, jpeg_decoder=decode_jpeg, known_whole=known_whole)
        assert np.array_equal(found, decode_image(data, 3))
    assert capfd.readouterr().err == ""
