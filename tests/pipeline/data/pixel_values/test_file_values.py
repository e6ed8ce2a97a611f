"""Every bit of a file is read: types, orders of bytes, layouts and formats."""

from __future__ import annotations

import struct
import zlib
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues, PixelMapping, ValueFit
from patchline.pipeline.data.reading.decoding import (
    decode_image,
    deep_values,
    read_header,
    reserve_and_decode,
)
from patchline.pipeline.data.reading.reduced_values import read_reduced_bits
from tests.conftest import encoded
from tests.pipeline.data.pixel_values.made_files import (
    jpeg_2000_file,
    png_chunk,
    png_file,
    refused,
    tiff_file,
)

Values = np.ndarray[Any, Any]


def values_of(data: bytes) -> FileValues:
    with deep_values(data) as values:
        assert values is not None
        return values


def some(dtype: str, samples: int, height: int = 37, width: int = 41) -> Values:
    """Return values of a type over much of its range; floating-point ones have a NaN."""
    rng, kind, shape = np.random.default_rng(samples), np.dtype(dtype), (height, width, samples)
    if kind.kind == "f":
        values = rng.normal(0, 100, shape).astype(kind)
        values[0, 0, 0] = np.nan
        return values
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("dtype", ["u2", "i4", "f4", "f2", "f8", "i1"])
def test_every_layout_of_a_tiff_file_gives_back_its_values(dtype: str, samples: int) -> None:
    """Strips and tiles, chunky and planar, in either order of bytes, packed and predicted."""
    values = some(dtype, samples)
    predictors = (1, 3) if dtype[0] == "f" else (1, 2)
    for layout in product("<>", (False, samples > 1), (0, 16), predictors):
        order, planar, tile, predictor = layout
        data = tiff_file(
            values, order=order, planar=planar, tile=tile, deflate=order == ">",
            predictor=predictor,
        )  # fmt: skip
        found = values_of(data).samples_HWN
        assert found.dtype == values.dtype
        assert np.array_equal(found, values, equal_nan=dtype[0] == "f"), layout
        assert read_header(data)[:2] == (41, 37)


def test_twelve_bits_that_are_packed_declare_their_white() -> None:
    """Two samples of 12 bits share three bytes, and 4095 is white."""
    values = np.arange(0, 4096, 16, dtype=np.uint16).reshape(16, 16, 1)
    bits = np.unpackbits(values.astype(">u2").view(np.uint8), axis=2)[:, :, 4:]
    packed = np.packbits(bits.reshape(16, -1), axis=1)[:, :, None]
    found = values_of(tiff_file(packed, tags={256: (4, [16]), 258: (3, [12])}))
    assert np.array_equal(found.samples_HWN, values)
    assert found.declared == 4095


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({339: (3, [4])}, "sample format 4"),
        ({258: (3, [48])}, "48 bits"),
        ({262: (3, [32803])}, "photometric interpretation 32803"),
        ({259: (3, [9])}, "compressed in a way that is not read"),
        ({279: (4, [1 << 30] * 13)}, "ends too early"),
        ({50706: (1, [1, 4, 0, 0])}, "camera's raw file"),
        ({258: (3, [8, 16])}, "different types"),
        ({270: (2, list(b"Aperio Image Library\0"))}, "microscope slide"),
    ],
)
def test_what_is_not_understood_is_refused(tags: dict[int, Any], reason: str) -> None:
    """No value is passed on as if it were known: the reason says what is wrong."""
    refused(reason, tiff_file(some("u2", 2 if reason == "different types" else 1), tags=tags))


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
def test_a_png_file_of_sixteen_bits_keeps_all_of_them(samples: int) -> None:
    """Pillow cuts colors of 16 bits to 8; here they are as they were written."""
    values = some("u2", samples)
    found = values_of(png_file(values, significant=12))
    assert np.array_equal(found.samples_HWN, values)
    assert (found.opacity, found.declared) == ("straight" if samples in (2, 4) else "", 4095)


def test_a_transparent_color_of_sixteen_bits_is_transparent() -> None:
    """One color of a PNG file becomes white, not its neighbours."""
    values = some("u2", 3)
    chunk = png_chunk(b"tRNS", struct.pack(">3H", *values[2, 3].tolist()))
    opaque = values_of(png_file(values, chunks=chunk)).samples_HWN[:, :, 3]
    assert np.argwhere(opaque == 0).tolist() == [[2, 3]]
    assert (decode_image(png_file(values, chunks=chunk), 3)[2, 3] == 255).all()


def test_damaged_files_of_sixteen_bits_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """Half a file is not an image, and no library prints about it."""
    values = some("u2", 3, 48, 64)
    data, colors = png_file(values), jpeg_2000_file(values, 12)
    short = data[: data.index(b"IDAT") - 4]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values[:24])
    short += png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    half = len(data) // 2
    changed = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
    for damaged, reason in (
        (data[:-9], "."), (data[:half], "."), (colors[: len(colors) // 2], "."),
        (short, "ends too early"), (changed, "checksum"),
    ):  # fmt: skip
        refused(reason, damaged)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("samples", "kinds"), [(1, "52"), (3, "63")])
def test_netpbm_files_declare_their_white(samples: int, kinds: str) -> None:
    """PGM and PPM files of more than 8 bits, as bytes and as text."""
    values = some("u2", samples) & np.uint16(1023)
    texts = (values.astype(">u2").tobytes(), " ".join(map(str, values.ravel())).encode())
    for kind, content in zip(kinds, texts, strict=True):
        data = f"P{kind}\n# made\n41 37\n1023\n".encode() + content
        found = values_of(data)
        assert np.array_equal(found.samples_HWN, values)
        assert found.declared == 1023
        refused("ends too early", data[:-200])


@pytest.mark.parametrize("bits", [9, 16])
@pytest.mark.parametrize("samples", [1, 3, 4])
def test_colors_of_a_jpeg_2000_file_keep_all_bits(samples: int, bits: int) -> None:
    """Pillow reduces colors to 8 bits, and grey of 9."""
    values = some("u2", samples, 48, 64) >> (16 - bits)
    found = values_of(jpeg_2000_file(values, bits))
    assert np.array_equal(found.samples_HWN, values)
    assert found.declared == (1 << bits) - 1
    assert (found.colors, found.bands) == (min(samples, 3), samples)
    assert found.opacity == ("straight" if samples == 4 else "")
    free = jpeg_2000_file(values, bits).replace(b"cdef", b"free")
    assert values_of(free).opacity == ""  # a fourth band is none unless the box says so


_AVIF = cv2.imencode(".avif", some("u2", 3, 48, 64) >> 6, [cv2.IMWRITE_AVIF_DEPTH, 10])[1].tobytes()


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (_AVIF, 10),
        (tiff_file(some("u2", 4), 5), 16),
        (tiff_file(some("u1", 1), 3, tags={320: (3, [*range(0, 65536, 257)] * 3)}), 0),
        (tiff_file(some("u1", 1), 3, tags={320: (3, [*range(0, 1792, 7)] * 3)}), 16),
    ],
    ids=["avif10", "cmyk16", "palette8", "palette16"],
)
def test_what_a_decoder_reduces_to_8_bits_is_known(data: bytes, bits: int) -> None:
    """The bits of a file are known although its decoder gives 8 of them, and it is still read."""
    assert read_reduced_bits(data) == bits
    assert read_reduced_bits(data[: len(data) // 3]) in (
        0,
        bits,
    )  # the decoder says what is damaged
    fits = list[ValueFit]()
    with reserve_and_decode(data, 3, on_fit=fits.append) as pixels:
        assert pixels.dtype == np.uint8
    assert fits == [ValueFit(reduced=bits)]


def test_a_jpeg_file_of_twelve_bits_is_refused_with_the_remedy() -> None:
    """Its pixels need a decoder of their own, which the reason names."""
    data = encoded(Image.new("L", (16, 16)), "JPEG").replace(
        b"\xff\xc0\0\x0b\x08", b"\xff\xc1\0\x0b\x0c"
    )
    refused(r"12 bits per sample.*imagecodecs", data)


def test_orientation_and_inversion_apply_to_deep_images() -> None:
    """A turned file is turned back; where zero is white, it becomes white."""
    values = some("u2", 1)
    turned = decode_image(tiff_file(values, tags={274: (3, [6])}), 1)
    plain = decode_image(tiff_file(values), 1)
    assert np.array_equal(turned, np.rot90(plain, -1))
    assert np.array_equal(decode_image(tiff_file(values, 0), 1), 255 - plain)


def test_chosen_bands_become_colors_or_grey() -> None:
    """Three bands become red, green and blue in their order; one becomes grey; no other is seen."""
    values = some("u1", 5)
    data = tiff_file(values, 2, [0, 0])
    pixels = decode_image(data, 3, mapping=PixelMapping(bands=(4, 3, 2)))
    assert np.array_equal(pixels, values[:, :, [3, 2, 1]])
    grey = decode_image(data, 1, mapping=PixelMapping(bands=(5,)))
    assert np.array_equal(grey, values[:, :, [4]])
    refused(
        r"it has 3 bands, but data\.bands is 4",
        encoded(values[:, :, :3]),
        1,
        mapping=PixelMapping(bands=(4,)),
    )
    refused("5 bands, and nothing says", data)


def test_opacity_of_sixteen_bits_lays_colors_on_white() -> None:
    """A transparent pixel becomes white, a half transparent one is mixed with white."""
    values = np.zeros((2, 3, 4), np.uint16)
    values[:, :, 3] = [0, 32768, 65535]
    for extra in (1, 2):
        assert decode_image(tiff_file(values, 2, [extra]), 3)[0, :, 0].tolist() == [255, 127, 0]


def test_sixteen_bits_without_a_range_are_refused_where_they_may_be_twelve() -> None:
    """White by the format if the values reach for it; else nothing says what white is."""
    deep = some("u2", 1)
    assert np.array_equal(decode_image(png_file(deep), 1), np.round(deep / 257).astype(np.uint8))
    refused(r"16-bit values up to 4,09\d, and nothing", png_file(deep >> 4), 1)
    signed = some("i4", 1)
    refused("signed 32-bit values, and nothing says", tiff_file(signed), 1)
    range_ = PixelMapping((("uint16", 0.0, 4095.0),))
    refused("range is for images of 16-bit values", tiff_file(signed), 1, mapping=range_)
