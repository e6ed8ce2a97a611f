"""Measure every image while it is read: format, brightness, sharpness, and a small thumbnail.

The images are not opened a second time, and per image about 800 bytes are kept.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import cv2
import numpy as np
import pandas as pd

from patchline.pipeline.data.near_duplicates.thumbnails import (
    ThumbnailCollector,
    Thumbnails,
    shrunk,
)
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of

_TILES = 4
_ROUNDING = 4.0
"""Energy of the Laplacian that rounding to 8 bits leaves in a smooth image."""
COLUMNS = ["format", "brightest", "contrast", "entropy", "sharpness"]
Array = np.ndarray[Any, Any]


class ImageMeasures:
    """Collects the measures of images; `add` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, int] = {}
        self._values: list[tuple[str, float, float, float, float]] = []
        self._thumbnails = ThumbnailCollector()

    def add(self, path: str, data: bytes, image_HWC: Array) -> None:
        """Measure one image: its path, the file, and the decoded RGB pixels."""
        small = shrunk(image_HWC)
        grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        values = (format_of(data[:HEAD_BYTES]) or "", *_light(grey), _sharpness(grey))
        self._thumbnails.add_shrunk(path, small)
        with self._lock:
            self._paths[path] = len(self._values)
            self._values.append(values)

    def table(self, paths: pd.Series[str]) -> pd.DataFrame:
        """Return the columns `COLUMNS` for some images, in their order and with their index."""
        rows = [self._values[self._paths[path]] for path in paths]
        return pd.DataFrame(rows, columns=COLUMNS, index=paths.index)

    def thumbnails(self, paths: pd.Series[str]) -> Thumbnails:
        """Return the thumbnails of some images, in their order."""
        return self._thumbnails.of(paths)


def _light(grey_HW: Array) -> tuple[float, float, float]:
    """Return the 99th percentile and the standard deviation (0 to 255), and the entropy (bits)."""
    counts = np.bincount(grey_HW.ravel(), minlength=256)
    shares = counts / grey_HW.size
    values = np.arange(256)
    mean = float(shares @ values)
    brightest = int(np.searchsorted(np.cumsum(shares), 0.99))
    contrast = math.sqrt(float(shares @ (values - mean) ** 2))
    some = shares[shares > 0]
    return brightest, contrast, float(-(some * np.log2(some)).sum())


def _sharpness(grey_HW: Array) -> float:
    """Return how fine the details of the sharpest part are; it does not depend on contrast.

    The Laplacian's energy over the gradient's energy, in the tile where the former is highest: a
    photo with a blurred background has at least one sharp tile.
    """
    second = cv2.Laplacian(grey_HW, cv2.CV_32F)
    across = cv2.Sobel(grey_HW, cv2.CV_32F, 1, 0) / 4
    down = cv2.Sobel(grey_HW, cv2.CV_32F, 0, 1) / 4
    tiles = (min(_TILES, grey_HW.shape[1]), min(_TILES, grey_HW.shape[0]))
    fine = cv2.resize(second**2, tiles, interpolation=cv2.INTER_AREA)
    coarse = cv2.resize(across**2 + down**2, tiles, interpolation=cv2.INTER_AREA)
    place = int(fine.argmax())
    return max(0.0, float(fine.flat[place]) - _ROUNDING) / (float(coarse.flat[place]) + _ROUNDING)
