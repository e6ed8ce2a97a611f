"""Real images for the small models of these tests."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.plugins.tools.export.comparison import ComparisonImages
from tests.conftest import draw_photo
from tests.pipeline.conftest import Exported


@pytest.fixture(scope="session")
def photos(exported_rgb: Exported) -> ComparisonImages:
    """Return 96 photos to compare on, with the labels that the package gives, and 16 others."""
    package = PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, 1)
    pixels = np.stack([package.pixels(draw_photo(n % 6, n, 24)) for n in range(112)])
    return ComparisonImages(
        images_NHWC=pixels[:96],
        labels_N=package.probabilities(pixels[:96]).argmax(1),
        origin="96 photos",
        calibration_NHWC=pixels[96:],
        calibration_origin="16 other photos",
    )
