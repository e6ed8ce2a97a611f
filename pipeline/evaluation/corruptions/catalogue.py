"""The corruptions of arXiv 1903.12261 by name, applied to images of 8 bits.

The parameters are those of ImageNet-C. Lengths are scaled by the side of the image in relation to
224 pixels, as the paper's own variants for smaller images do; JPEG's blocks keep their 8 pixels.
Frost is missing, because it needs the authors' photographs. What is random depends on the seed, the
image's content, the corruption and the severity alone.
"""

from __future__ import annotations

import zlib

import numpy as np

from patchline.pipeline.evaluation.corruptions import blur, digital, noise, weather
from patchline.pipeline.evaluation.corruptions.pixel_values import Array, Corrupt

SEVERITIES = (1, 2, 3, 4, 5)
CORRUPTIONS: dict[str, Corrupt] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": weather.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": blur.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}


def corrupted(pixels_HWC: Array, name: str, severity: int, seed: int) -> Array:
    """Return a corrupted image: uint8 (H, W, C).

    Args:
        pixels_HWC: uint8.
        name: of the corruption.
        severity: from 1 to 5.
        seed: the same one gives the same image.
    """
    content = zlib.crc32(np.ascontiguousarray(pixels_HWC).tobytes())
    random = np.random.default_rng([seed, content, list(CORRUPTIONS).index(name), severity])
    values_HWC = pixels_HWC.astype(np.float32) / 255
    result = np.asarray(CORRUPTIONS[name](values_HWC, severity - 1, random))
    pixels: Array = np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)
    return pixels.reshape(pixels_HWC.shape)
