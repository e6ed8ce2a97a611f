"""What software does to images: strong compression, and a distortion like that of rubber."""

from __future__ import annotations

import cv2
import numpy as np

from patchline.pipeline.evaluation.corruptions.pixel_values import Array, blurred, shaped, warped


def jpeg_compression(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Compress as JPEG of low quality."""
    del random  # every image is compressed alike
    quality = (25, 18, 15, 10, 7)[severity]
    channels = values_HWC.shape[2]
    pixels_HWC = np.clip(values_HWC * 255, 0, 255).astype(np.uint8)
    if channels in (1, 3):
        return _compressed(pixels_HWC, quality)
    parts = [_compressed(pixels_HWC[:, :, [number]], quality) for number in range(channels)]
    return np.concatenate(parts, axis=2)


def _compressed(pixels_HWC: Array, quality: int) -> Array:
    is_grey = pixels_HWC.shape[2] == 1
    given = pixels_HWC if is_grey else np.ascontiguousarray(pixels_HWC[:, :, ::-1])
    _, encoded = cv2.imencode(".jpg", given, [cv2.IMWRITE_JPEG_QUALITY, quality])
    flags = cv2.IMREAD_GRAYSCALE if is_grey else cv2.IMREAD_COLOR
    decoded = shaped(np.asarray(cv2.imdecode(encoded, flags)), pixels_HWC)
    return (decoded if is_grey else decoded[:, :, ::-1]).astype(np.float32) / 255


def elastic_transform(values_HWC: Array, severity: int, random: np.random.Generator) -> Array:
    """Move the corners of a square at random, and every point smoothly."""
    strength, sigma, moved = (
        (2, 0.7, 0.1),
        (2, 0.08, 0.2),
        (0.05, 0.01, 0.02),
        (0.07, 0.01, 0.02),
        (0.12, 0.01, 0.02),
    )[severity]
    height, width = values_HWC.shape[:2]
    side = min(height, width)
    centre, third = np.array([width, height], np.float32) / 2, side / 3
    corners = np.array(
        [centre + third, [centre[0] + third, centre[1] - third], centre - third], np.float32
    )
    shift = random.uniform(-moved * side, moved * side, corners.shape).astype(np.float32)
    values = warped(values_HWC, cv2.getAffineTransform(corners, corners + shift))
    field = random.uniform(-1, 1, (2, height, width, 1)).astype(np.float32)
    moves = [strength * side * blurred(each, sigma * side)[:, :, 0] for each in field]
    columns = (np.arange(width, dtype=np.float32)[None] + moves[0]).astype(np.float32)
    rows = (np.arange(height, dtype=np.float32)[:, None] + moves[1]).astype(np.float32)
    result = cv2.remap(values, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return shaped(result, values_HWC)
