"""An image on the page is what a run of the folder would train on."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from patchline.plugins.tools.label.pool import Pool
from patchline.plugins.tools.label.server.application import picture
from tests.pipeline.data.pixel_values.made_files import png_file, tiff_file


def test_values_of_more_than_8_bits_have_one_range_for_the_folder(tmp_path: Path) -> None:
    """A dark image stays dark, and white may be zero; each type of values has a range of its own.

    No contrast is stretched: 4,000 of 12 bits is 249 of 8.
    """
    ramp_HW1 = np.linspace(0, 4000, 400).astype(np.uint16).reshape(20, 20, 1)
    (tmp_path / "bright.png").write_bytes(png_file(ramp_HW1))
    (tmp_path / "dark.png").write_bytes(png_file(ramp_HW1 // 4))
    (tmp_path / "negative.tif").write_bytes(tiff_file(ramp_HW1, photometric=0))
    (tmp_path / "share.tif").write_bytes(tiff_file(ramp_HW1.astype(np.float32) / 4000))
    pool = Pool(tmp_path, tmp_path)
    shown = {}
    for image in pool.images.values():
        content = np.frombuffer(picture(pool, image, 256).content, np.uint8)
        pixels = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
        assert pixels is not None
        shown[image.name] = pixels[0, 0], pixels[-1, -1]
    assert shown == {
        "bright.png": (0, 249), "dark.png": (0, 62), "negative.tif": (255, 6),
        "share.tif": (0, 255),
    }  # fmt: skip
