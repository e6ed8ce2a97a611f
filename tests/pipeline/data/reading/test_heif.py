"""HEIF files, as phones write them: read where pillow-heif is installed, named where it is not."""

from __future__ import annotations

import io

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from patchline.pipeline.data.reading import image_formats
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    decode_image,
    read_header,
)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """Return a smooth RGB image (48, 64, 3), which lossy compression changes little."""
    rows, columns = np.mgrid[0:48, 0:64]
    return np.stack([rows * 5, columns * 3, 255 - rows * 3], axis=2).astype(np.uint8)


def encoded(pixels: np.ndarray, orientation: int = 1) -> bytes:
    """Return a HEIF file."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = pillow_heif.from_pillow(Image.fromarray(pixels))
    content = io.BytesIO()
    file.save(content, quality=95, exif=exif.tobytes())
    return content.getvalue()


def test_a_photograph_comes_close(photo: np.ndarray) -> None:
    """Size, mode and pixels are those of the image."""
    data = encoded(photo)
    assert image_formats.format_of(data[:64]) == "HEIF"
    assert read_header(data)[:2] == (64, 48)
    assert np.abs(decode_image(data, 3).astype(int) - photo).mean() < 4
    assert decode_image(data, 1).shape == (48, 64, 1)


def test_it_is_turned_the_right_way_up(photo: np.ndarray) -> None:
    """A photograph taken with the phone held upright is stored on its side."""
    turned = decode_image(encoded(photo, orientation=6), 3)
    assert turned.shape == (64, 48, 3)
    assert np.abs(turned.astype(int) - np.rot90(photo, -1)).mean() < 4


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_truncated_file_is_refused(photo: np.ndarray, share: float) -> None:
    """The beginning of a file is no image."""
    data = encoded(photo)
    with pytest.raises(UndecodableImageError):
        decode_image(data[: int(len(data) * share)], 3)


def test_without_the_package_the_remedy_is_said(
    photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names what to install."""
    monkeypatch.setattr(image_formats, "reads_heif", lambda: False)
    with pytest.raises(UndecodableImageError, match=r"need pillow-heif: pip install"):
        decode_image(encoded(photo), 3)
