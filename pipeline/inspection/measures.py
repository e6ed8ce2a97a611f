"""Measure every image while it is read: format, brightness, sharpness, and a small thumbnail.

The images are not opened a second time, and per image about 800 bytes are kept.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import cv2
import numpy as np
import pandas as pd

from pipeline.data.image_formats import HEAD_BYTES, format_of

LUMA_SIDE, CHROMA_SIDE = 24, 8
"""Pixels on a side of the thumbnails that near duplicates are found with."""
_MEASURED_SIDE = 256
"""Larger images are scaled down first, so that the measures do not depend on their size."""
_TILES = 4
_ROUNDING = 4.0
"""Energy of the Laplacian that rounding to 8 bits leaves in a smooth image."""
COLUMNS = ["format", "brightest", "contrast", "entropy", "sharpness"]
Array = np.ndarray[Any, Any]


class Thumbnails(NamedTuple):
    """The images in YCrCb, squeezed into small squares, in the order of a manifest's rows."""

    luma_NHW: Array
    chroma_NHWC: Array

    def take(self, rows: Array | slice) -> Thumbnails:
        """Return the thumbnails of some rows."""
        return Thumbnails(self.luma_NHW[rows], self.chroma_NHWC[rows])


class ImageMeasures:
    """Collects the measures of images; `add` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, int] = {}
        self._values: list[tuple[str, float, float, float, float]] = []
        self._luma, self._chroma = bytearray(), bytearray()

    def add(self, path: str, data: bytes, image_HWC: Array) -> None:
        """Measure one image: its path, the file, and the decoded RGB pixels."""
        small = _shrunk(image_HWC)
        grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        values = (format_of(data[:HEAD_BYTES]) or "", *_light(grey), _sharpness(grey))
        luma, chroma = _thumbnail(small)
        with self._lock:
            self._paths[path] = len(self._values)
            self._values.append(values)
            self._luma += luma.tobytes()
            self._chroma += chroma.tobytes()

    def table(self, paths: pd.Series[str]) -> pd.DataFrame:
        """Return the columns `COLUMNS` for some images, in their order and with their index."""
        rows = [self._values[self._paths[path]] for path in paths]
        return pd.DataFrame(rows, columns=COLUMNS, index=paths.index)

    def thumbnails(self, paths: pd.Series[str]) -> Thumbnails:
        """Return the thumbnails of some images, in their order."""
        places = np.array([self._paths[path] for path in paths], dtype=np.int64)
        luma = np.frombuffer(self._luma, np.uint8).reshape(-1, LUMA_SIDE, LUMA_SIDE)
        chroma = np.frombuffer(self._chroma, np.uint8).reshape(-1, CHROMA_SIDE, CHROMA_SIDE, 2)
        return Thumbnails(luma[places], chroma[places])


def _shrunk(image_HWC: Array) -> Array:
    height, width = image_HWC.shape[:2]
    scale = _MEASURED_SIDE / max(height, width)
    if scale >= 1:
        return np.ascontiguousarray(image_HWC)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(np.ascontiguousarray(image_HWC), size, interpolation=cv2.INTER_AREA)


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


def _thumbnail(image_HWC: Array) -> tuple[Array, Array]:
    """Return luma and chroma; both sides are averaged separately, so the shape does not matter."""
    colours = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2YCrCb)
    luma = cv2.resize(colours[:, :, 0], (LUMA_SIDE,) * 2, interpolation=cv2.INTER_AREA)
    chroma = cv2.resize(colours, (CHROMA_SIDE,) * 2, interpolation=cv2.INTER_AREA)[:, :, 1:]
    return luma, chroma
