"""The decoder of common JPEG files: its answer is that of OpenCV, Pillow and a second pass."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image, decoded
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.jpeg_wholeness import jpeg_frame
from tests.conftest import draw_photo

CODINGS: list[dict[str, Any]] = [
    {"quality": 90},
    {"quality": 60, "progressive": True},
    {"quality": 75, "restart_marker_blocks": 2},
]


def jpeg(width: int, height: int, *, mode: str = "RGB", **options: Any) -> bytes:
    """Return a photograph as a JPEG file."""
    image = Image.fromarray(draw_photo(1, 3, 128)[:height, :width]).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def turned(orientation: int, byte_order: str) -> bytes:
    """Return a photograph whose EXIF data turn it."""
    exif = Image.Exif()
    exif.endian = byte_order
    exif[0x010F] = "Maker"
    exif[0x0112] = orientation
    return jpeg(40, 24, exif=exif)


def at_once(data: bytes) -> Any:
    """Return the image, if it is seen to be complete as it is decoded."""
    frame = jpeg_frame(data)
    assert frame is not None
    return decode_jpeg(data, frame, strict=True)


def answer(data: bytes, **options: Any) -> Any:
    """Return the pixels of a file, or why there are none."""
    try:
        with decoded(data, 3, **options) as pixels_HWC:
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


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("orientation", [1, 2, 6, 8])
def test_turned_photographs_are_left_to_the_usual_way(orientation: int, byte_order: str) -> None:
    """Only a photograph in color that is upright as it is stored is decoded here."""
    data = turned(orientation, byte_order)
    assert (at_once(data) is None) == (orientation != 1)
    assert at_once(jpeg(40, 24, mode="L")) is at_once(jpeg(40, 24, mode="CMYK")) is None
    assert np.array_equal(answer(data, jpeg_decoder=decode_jpeg), decode_image(data, 3))
    with decoded(data, 1, jpeg_decoder=decode_jpeg) as grey_HW1:
        assert np.array_equal(grey_HW1, decode_image(data, 1))


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
    files = [jpeg(40, 24, **coding) for coding in CODINGS] + [turned(1, ">"), turned(6, "<")]
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
        strict = answer(bytes(data), jpeg_decoder=decode_jpeg)
        assert np.array_equal(strict, usual), number
        seen["refused" if isinstance(usual, str) else "pixels"] += 1
    assert min(seen.values()) > 60


@pytest.mark.parametrize("place", [b"\xff\xda", b"\xff\xd9"], ids=["header", "end"])
def test_harmless_bytes_are_passed_over_in_silence(
    place: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some programs write bytes between the markers; OpenCV prints a line about each such file."""
    data = jpeg(40, 24, quality=90)
    at = data.index(place)
    odd = data[:at] + b"abcdefg" + data[at:]
    assert at_once(odd) is None
    found = answer(odd, jpeg_decoder=decode_jpeg)
    known = answer(odd, jpeg_decoder=decode_jpeg, known_whole=True)
    assert capfd.readouterr().err == ""
    assert np.array_equal(found, decode_image(data, 3))
    assert np.array_equal(known, found)
