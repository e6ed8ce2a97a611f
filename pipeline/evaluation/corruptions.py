"""Images as a camera, the weather or a network spoils them: arXiv 1903.12261, section 4.

Shapes: height H, width W, C channels.

The parameters are those of ImageNet-C. Lengths are scaled by the side of the image in relation to
224 pixels, as the paper's own variants for smaller images do; JPEG's blocks keep their 8 pixels.
Frost is missing, because it needs the authors' photographs. What is random depends on the seed, the
image's content, the corruption and the severity alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

Array = np.ndarray[Any, Any]
Random = np.random.Generator

PAPER_SIDE = 224
"""Side in pixels of the images that the paper's parameters are for."""


def scale_of(values_HWC: Array) -> float:
    """Return the image's shorter side in relation to the paper's: lengths are multiplied by it."""
    return float(min(values_HWC.shape[:2]) / PAPER_SIDE)


def convolve(values_HWC: Array, kernel: Array) -> Array:
    """Return the image convolved with a kernel, mirrored at its borders."""
    return reshape_like(
        cv2.filter2D(values_HWC, -1, kernel, borderType=cv2.BORDER_REFLECT_101), values_HWC
    )


def blur(values_HWC: Array, sigma: float) -> Array:
    """Return the image blurred by a Gaussian of so many pixels."""
    if sigma <= 0:
        return values_HWC
    size = 2 * math.ceil(3 * sigma) + 1
    return reshape_like(cv2.GaussianBlur(values_HWC, (size, size), sigma), values_HWC)


def zoom(values_HWC: Array, factor: float) -> Array:
    """Return the centre of the image, enlarged to its size."""
    height, width = values_HWC.shape[:2]
    matrix = np.array(
        [
            [factor, 0, (1 - factor) * (width - 1) / 2],
            [0, factor, (1 - factor) * (height - 1) / 2],
        ]
    )
    return warp(values_HWC, matrix)


def warp(values_HWC: Array, matrix_23: Array) -> Array:
    """Return the image under an affine map, mirrored at its borders."""
    height, width = values_HWC.shape[:2]
    result = cv2.warpAffine(
        values_HWC,
        matrix_23,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    return reshape_like(result, values_HWC)


def line_kernel(length: float, sigma: float, degrees: float) -> Array:
    """Return a kernel that smears in one direction, the weights half a Gaussian.

    Args:
        length: length of the smear, in pixels.
        sigma: standard deviation of the Gaussian, in pixels.
        degrees: direction of the smear, as an angle in degrees.
    """
    reach = max(1, math.ceil(length))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    steps = np.linspace(0, length, 4 * reach + 1)
    weights = np.exp(-(steps**2) / (2 * max(sigma, 1e-6) ** 2))
    angle = math.radians(degrees)
    rows, columns = reach + steps * math.sin(angle), reach + steps * math.cos(angle)
    np.add.at(kernel, (np.rint(rows).astype(int), np.rint(columns).astype(int)), weights)
    normalised: Array = kernel / kernel.sum()
    return normalised


def grey(values_HWC: Array) -> Array:
    """Return the brightness (H, W, 1), weighted as an eye does for three channels."""
    if values_HWC.shape[2] == 3:  # noqa: PLR2004 - RGB
        weights = np.array([0.299, 0.587, 0.114], np.float32)
        weighted: Array = (values_HWC @ weights)[:, :, None]
        return weighted
    mean: Array = values_HWC.mean(axis=2, keepdims=True)
    return mean


def reshape_like(result: Array, like_HWC: Array) -> Array:
    """Return a result of OpenCV, which drops the axis of a single channel, with that axis."""
    return result.reshape(like_HWC.shape)


def jpeg_compression(values_HWC: Array, _random: Random, quality: int) -> Array:
    """Compress as JPEG of low quality."""
    channels = values_HWC.shape[2]
    pixels_HWC = np.clip(values_HWC * 255, 0, 255).astype(np.uint8)
    if channels in (1, 3):
        return _compress(pixels_HWC, quality)
    parts = [_compress(pixels_HWC[:, :, [number]], quality) for number in range(channels)]
    return np.concatenate(parts, axis=2)


def _compress(pixels_HWC: Array, quality: int) -> Array:
    is_grey = pixels_HWC.shape[2] == 1
    given = pixels_HWC if is_grey else np.ascontiguousarray(pixels_HWC[:, :, ::-1])
    _, encoded = cv2.imencode(".jpg", given, [cv2.IMWRITE_JPEG_QUALITY, quality])
    flags = cv2.IMREAD_GRAYSCALE if is_grey else cv2.IMREAD_COLOR
    decoded = reshape_like(np.asarray(cv2.imdecode(encoded, flags)), pixels_HWC)
    return (decoded if is_grey else decoded[:, :, ::-1]).astype(np.float32) / 255


def elastic_transform(
    values_HWC: Array, random: Random, strength: float, sigma: float, moved: float
) -> Array:
    """Move the corners of a square at random, and every point smoothly."""
    height, width = values_HWC.shape[:2]
    side = min(height, width)
    centre, third = np.array([width, height], np.float32) / 2, side / 3
    corners = np.array(
        [centre + third, [centre[0] + third, centre[1] - third], centre - third], np.float32
    )
    shift = random.uniform(-moved * side, moved * side, corners.shape).astype(np.float32)
    values = warp(values_HWC, cv2.getAffineTransform(corners, corners + shift))
    field = random.uniform(-1, 1, (2, height, width, 1)).astype(np.float32)
    moves = [strength * side * blur(each, sigma * side)[:, :, 0] for each in field]
    columns = (np.arange(width, dtype=np.float32)[None] + moves[0]).astype(np.float32)
    rows = (np.arange(height, dtype=np.float32)[:, None] + moves[1]).astype(np.float32)
    result = cv2.remap(values, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return reshape_like(result, values_HWC)


def snow(values_HWC: Array, random: Random, *parameters: float) -> Array:
    """Whiten the image, and let flakes fall in it."""
    mean, deviation, size, least, length, sigma, kept = parameters
    scale = scale_of(values_HWC)
    layer = random.normal(mean, deviation, (*values_HWC.shape[:2], 1)).astype(np.float32)
    layer = zoom(layer, size)
    layer[layer < least] = 0
    direction = random.uniform(-135, -45)
    layer = convolve(
        np.clip(layer, 0, 1), line_kernel(2 * length * scale, sigma * scale, direction)
    )
    whitened = np.maximum(values_HWC, grey(values_HWC) * 1.5 + 0.5)
    return kept * values_HWC + (1 - kept) * whitened + layer + layer[::-1, ::-1]


def fog(values_HWC: Array, random: Random, density: float, decay: float) -> Array:
    """Lay clouds over the image, and keep its largest value."""
    largest = max(float(values_HWC.max()), 1e-6)
    height, width = values_HWC.shape[:2]
    clouds = _clouds(max(height, width), decay, random)[:height, :width, None]
    return (values_HWC + density * clouds) * largest / (largest + density)


def brightness(values_HWC: Array, _random: Random, added: float) -> Array:
    """Brighten: the value of HSV for colours, all values otherwise."""
    if values_HWC.shape[2] != 3:  # noqa: PLR2004 - RGB
        return values_HWC + added
    hsv = cv2.cvtColor(values_HWC, cv2.COLOR_RGB2HSV)
    hsv[:, :, 2] = np.clip(hsv[:, :, 2] + added, 0, 1)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def contrast(values_HWC: Array, _random: Random, kept: float) -> Array:
    """Bring each channel closer to its mean."""
    mean = values_HWC.mean(axis=(0, 1), keepdims=True)
    lower: Array = mean + kept * (values_HWC - mean)
    return lower


def _clouds(side: int, decay: float, random: Random) -> Array:
    """Return a plasma fractal from 0 to 1: square with a side of at least `side`.

    Midpoint displacement, as in the paper's code: each level is twice as fine, its deviations
    smaller by `decay`.
    """
    size = 1 << max(1, (side - 1).bit_length())
    field: Array = np.zeros((1, 1), np.float32)
    amplitude = 1.0
    while field.shape[0] < size:
        finer = field.shape[0] * 2
        field = cv2.resize(field, (finer, finer), interpolation=cv2.INTER_LINEAR)
        field = field.reshape(finer, finer)
        field += (amplitude * random.uniform(-1, 1, field.shape)).astype(np.float32)
        amplitude /= decay
    field -= field.min()
    return field / max(float(field.max()), 1e-6)


def defocus_blur(values_HWC: Array, _random: Random, pixels: float, softness: float) -> Array:
    """Smear every point over a disk."""
    radius = pixels * scale_of(values_HWC)
    reach, fine = math.ceil(radius), 8  # drawn finer than the pixels, for radii below one
    size = (2 * reach + 1) * fine
    places = (np.arange(size) + 0.5) / fine - (reach + 0.5)
    disk = (places[:, None] ** 2 + places[None] ** 2 <= radius**2).astype(np.float32)
    kernel = disk.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).mean(axis=(1, 3))
    kernel = blur(kernel[:, :, None], softness * scale_of(values_HWC))[:, :, 0]
    return convolve(values_HWC, kernel / kernel.sum())


def glass_blur(values_HWC: Array, random: Random, sigma: float, shift: int, rounds: int) -> Array:
    """Take each pixel from a random place nearby, between two blurs.

    The paper exchanges pixels one after the other; here all are drawn at once.
    """
    scale = scale_of(values_HWC)
    height, width = values_HWC.shape[:2]
    values = blur(values_HWC, sigma * scale)
    for _ in range(rounds):
        moved = random.uniform(-shift, shift, (2, height, width)) * scale
        rows = np.arange(height)[:, None] + moved[0]
        columns = np.arange(width)[None] + moved[1]
        values = values[
            np.clip(np.rint(rows).astype(int), 0, height - 1),
            np.clip(np.rint(columns).astype(int), 0, width - 1),
        ]
    return blur(values, sigma * scale)


def motion_blur(values_HWC: Array, random: Random, radius: float, sigma: float) -> Array:
    """Smear in a random direction, up to 45 degrees from the horizontal."""
    scale = scale_of(values_HWC)
    kernel = line_kernel(2 * radius * scale, sigma * scale, random.uniform(-45, 45))
    return convolve(values_HWC, kernel)


def zoom_blur(values_HWC: Array, _random: Random, most: float, step: float) -> Array:
    """Average over zooms."""
    factors = np.arange(1, most, step)
    total = values_HWC.copy()
    for factor in factors:
        total += zoom(values_HWC, float(factor))
    return total / (len(factors) + 1)


def pixelate(values_HWC: Array, _random: Random, share: float) -> Array:
    """Shrink, and enlarge again."""
    height, width = values_HWC.shape[:2]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    shrunk = cv2.resize(values_HWC, small, interpolation=cv2.INTER_AREA)
    enlarged = cv2.resize(shrunk, (width, height), interpolation=cv2.INTER_NEAREST)
    return enlarged.reshape(values_HWC.shape)


def gaussian_noise(values_HWC: Array, random: Random, deviation: float) -> Array:
    """Add noise to every value, as in low light."""
    return values_HWC + random.normal(0, deviation, values_HWC.shape)


def shot_noise(values_HWC: Array, random: Random, photons: int) -> Array:
    """Count photons: so many for full brightness."""
    return random.poisson(np.clip(values_HWC, 0, 1) * photons) / photons


def impulse_noise(values_HWC: Array, random: Random, share: float) -> Array:
    """Set a share of the values to 0 or 1."""
    is_hit, is_bright = (
        random.random((2, *values_HWC.shape)) < np.array([share, 0.5])[:, None, None, None]
    )
    return np.where(is_hit, is_bright.astype(values_HWC.dtype), values_HWC)


SEVERITIES = (1, 2, 3, 4, 5)
_PARAMETERS: dict[Callable[..., Array], tuple[tuple[float, ...], ...]] = {
    gaussian_noise: ((0.08, 0.12, 0.18, 0.26, 0.38),),
    shot_noise: ((60, 25, 12, 5, 3),),
    impulse_noise: ((0.03, 0.06, 0.09, 0.17, 0.27),),
    defocus_blur: ((3, 4, 6, 8, 10), (0.1, 0.5, 0.5, 0.5, 0.5)),
    glass_blur: ((0.7, 0.9, 1, 1.1, 1.5), (1, 2, 2, 3, 4), (2, 1, 3, 2, 2)),
    motion_blur: ((10, 15, 15, 15, 20), (3, 5, 8, 12, 15)),
    zoom_blur: ((1.11, 1.16, 1.21, 1.26, 1.31), (0.01, 0.01, 0.02, 0.02, 0.03)),
    snow: (
        (0.1, 0.2, 0.55, 0.55, 0.55),
        (0.3, 0.3, 0.3, 0.3, 0.3),
        (3, 2, 4, 4.5, 2.5),
        (0.5, 0.5, 0.9, 0.85, 0.85),
        (10, 12, 12, 12, 12),
        (4, 4, 8, 8, 12),
        (0.8, 0.7, 0.7, 0.65, 0.55),
    ),
    fog: ((1.5, 2, 2.5, 2.5, 3), (2, 2, 1.7, 1.5, 1.4)),
    brightness: ((0.1, 0.2, 0.3, 0.4, 0.5),),
    contrast: ((0.4, 0.3, 0.2, 0.1, 0.05),),
    elastic_transform: (
        (2, 2, 0.05, 0.07, 0.12),
        (0.7, 0.08, 0.01, 0.01, 0.01),
        (0.1, 0.2, 0.02, 0.02, 0.02),
    ),
    pixelate: ((0.6, 0.5, 0.4, 0.3, 0.25),),
    jpeg_compression: ((25, 18, 15, 10, 7),),
}
"""Each parameter at the five severities. A function maps values (H, W, C) from 0 to 1 to values,
which are clipped.
"""
CORRUPTIONS = {function.__name__: function for function in _PARAMETERS}


def corrupt(pixels_HWC: Array, name: str, severity: int, seed: int) -> Array:
    """Return a corrupted image: uint8 (H, W, C).

    Args:
        pixels_HWC: the image, uint8 (H, W, C).
        name: name of the corruption, a key of `CORRUPTIONS`.
        severity: severity of the corruption, from 1 to 5.
        seed: seed of the random numbers; the same one gives the same image.
    """
    content = zlib.crc32(np.ascontiguousarray(pixels_HWC).tobytes())
    random = np.random.default_rng([seed, content, list(CORRUPTIONS).index(name), severity])
    values_HWC = pixels_HWC.astype(np.float32) / 255
    function = CORRUPTIONS[name]
    parameters = (each[severity - 1] for each in _PARAMETERS[function])
    result = np.asarray(function(values_HWC, random, *parameters))
    pixels: Array = np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)
    return pixels.reshape(pixels_HWC.shape)
