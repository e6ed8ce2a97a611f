"""How bright, rich in contrast and sharp an image is, and what is wrong with it.

Inspection reports such images of a data set; a package warns of them. It needs numpy and OpenCV
alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np

BLANK, DARK, BLURRED = "blank", "dark", "blurred"
_MEASURED_SIDE = 256
_SHARPNESS_TILES = 4
_SMOOTH_ENERGY = 4.0
"""Energy of the Laplacian that rounding to 8 bits leaves in a smooth image."""
_BLANK_CONTRAST, _BLANK_ENTROPY = 4.0, 0.1
_DARK, _MOST_DARK = 64.0, 0.2
_BLURRED, _BLURRED_PART = 0.3, 1 / 3
_FEWEST_TO_COMPARE = 10


class ImageQuality(NamedTuple):
    """Measures of one image, or arrays of those of several."""

    brightest: Any
    """99th percentile of the grey values, 0 to 255."""
    contrast: Any
    """Their standard deviation."""
    entropy: Any
    """Entropy of the grey values, in bits."""
    sharpness: Any
    """How fine the details of the sharpest part are; it does not depend on contrast."""


class QualityLimits(NamedTuple):
    """What counts as dark or blurred among the images of a data set; None: nothing does."""

    dark: float | None
    blurred: float | None


def shrunk(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the image with at most 256 pixels on a side, so that measures do not depend on it."""
    height, width = image_HWC.shape[:2]
    scale = _MEASURED_SIDE / max(height, width)
    if scale >= 1:
        return np.ascontiguousarray(image_HWC)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(np.ascontiguousarray(image_HWC), size, interpolation=cv2.INTER_AREA)


def quality_of(image_HWC: np.ndarray[Any, Any]) -> ImageQuality:
    """Measure an image of 8 bits, grey or RGB; of other bands, their mean."""
    return quality_of_grey(as_grey(shrunk(image_HWC)))


def as_grey(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the grey values (H, W)."""
    channels = image_HWC.shape[2]
    if channels == 1:
        return image_HWC[:, :, 0]
    if channels == 3:  # noqa: PLR2004 - RGB
        return cv2.cvtColor(image_HWC, cv2.COLOR_RGB2GRAY)
    mean_HW: np.ndarray[Any, Any] = image_HWC.mean(axis=2).astype(np.uint8)
    return mean_HW


def quality_of_grey(grey_HW: np.ndarray[Any, Any]) -> ImageQuality:
    """Measure grey values of 8 bits."""
    return ImageQuality(*_light(grey_HW), _sharpness(grey_HW))


def limits_among(images: ImageQuality) -> QualityLimits:
    """Return what counts as dark or blurred, given the measures (N) of a data set's images.

    Data that are dark by nature, such as night skies, have no dark images; too few images tell no
    usual sharpness.
    """
    blank = is_blank(images)
    dark = ~blank & (np.asarray(images.brightest) < _DARK)
    limit: float | None = _DARK
    if len(dark) and dark.mean() > _MOST_DARK:
        limit, dark = None, np.zeros_like(dark)
    others = np.asarray(images.sharpness)[~blank & ~dark]
    if len(others) < _FEWEST_TO_COMPARE:
        return QualityLimits(limit, None)
    return QualityLimits(limit, min(_BLURRED, float(np.median(others)) * _BLURRED_PART))


def fault_of(image: ImageQuality, limits: QualityLimits) -> str:
    """Return the first of `blank`, `dark` and `blurred` that an image is, or nothing."""
    if is_blank(image):
        return BLANK
    if limits.dark is not None and image.brightest < limits.dark:
        return DARK
    if limits.blurred is not None and image.sharpness < limits.blurred:
        return BLURRED
    return ""


def faults(images: ImageQuality, limits: QualityLimits) -> list[str]:
    """Return the fault of each image, given their measures as arrays (N)."""
    return [fault_of(ImageQuality(*image), limits) for image in zip(*images, strict=True)]


def is_blank(images: ImageQuality) -> Any:
    """Return which images show a single colour."""
    return (images.contrast < _BLANK_CONTRAST) | (images.entropy < _BLANK_ENTROPY)


def _light(grey_HW: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return the 99th percentile and the standard deviation (0 to 255), and the entropy (bits)."""
    counts = np.bincount(grey_HW.ravel(), minlength=256)
    shares = counts / grey_HW.size
    values = np.arange(256)
    mean = float(shares @ values)
    brightest = int(np.searchsorted(np.cumsum(shares), 0.99))
    contrast = math.sqrt(float(shares @ (values - mean) ** 2))
    some = shares[shares > 0]
    return brightest, contrast, float(-(some * np.log2(some)).sum())


def _sharpness(grey_HW: np.ndarray[Any, Any]) -> float:
    """Return how fine the details of the sharpest part are.

    The Laplacian's energy over the gradient's energy, in the tile where the former is highest: a
    photo with a blurred background has at least one sharp tile.
    """
    second = cv2.Laplacian(grey_HW, cv2.CV_32F)
    across = cv2.Sobel(grey_HW, cv2.CV_32F, 1, 0) / 4
    down = cv2.Sobel(grey_HW, cv2.CV_32F, 0, 1) / 4
    tiles = (min(_SHARPNESS_TILES, grey_HW.shape[1]), min(_SHARPNESS_TILES, grey_HW.shape[0]))
    fine = cv2.resize(second**2, tiles, interpolation=cv2.INTER_AREA)
    coarse = cv2.resize(across**2 + down**2, tiles, interpolation=cv2.INTER_AREA)
    place = int(fine.argmax())
    return max(0.0, float(fine.flat[place]) - _SMOOTH_ENERGY) / (
        float(coarse.flat[place]) + _SMOOTH_ENERGY
    )
