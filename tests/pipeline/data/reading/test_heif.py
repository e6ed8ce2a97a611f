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
from tests.pipeline.data.reading.test_decoding import smooth


def heif(orientation: int = 1) -> bytes:
    """Return a smooth photograph, which lossy compression changes little."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = io.BytesIO()
    file = pillow_heif.from_pillow(Image.fromarray(smooth()))
    file.save(content, quality=95, exif=exif.tobytes())
    return content.getvalue()


def test_a_photograph_comes_close_and_is_turned_the_right_way_up() -> None:
    """Size, mode and pixels are those of the image, also of one stored on its side."""
    assert read_header(heif())[:2] == (32, 24)
    assert decode_image(heif(), 1).shape == (24, 32, 1)
    for orientation, expected in ((1, smooth()), (6, np.rot90(smooth(), -1))):
        found = decode_image(heif(orientation), 3)
        assert np.abs(found.astype(int) - expected).mean() < 4


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_truncated_file_is_refused(share: float) -> None:
    """The beginning of a file is no image."""
    with pytest.raises(UndecodableImageError):
        decode_image(heif()[: int(len(heif()) * share)], 3)


def test_without_the_package_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what to install."""
    monkeypatch.setattr(image_formats, "reads_heif", lambda: False)
    with pytest.raises(UndecodableImageError, match=r"need pillow-heif: pip install"):
        decode_image(heif(), 3)
