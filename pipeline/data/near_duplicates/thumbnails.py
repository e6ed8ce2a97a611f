"""Small thumbnails of images, collected while these are read: about 700 bytes for each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np

from patchline.pipeline.data.reading.image_quality import as_grey, shrunk

if TYPE_CHECKING:
    import pandas as pd

LUMA_SIDE, CHROMA_SIDE = 24, 8
"""Pixels on a side."""
Array = np.ndarray[Any, Any]


class Thumbnails(NamedTuple):
    """The images in YCrCb, squeezed into small squares, in the order of a manifest's rows."""

    luma_NHW: Array
    chroma_NHWC: Array

    def take(self, rows: Array | slice) -> Thumbnails:
        """Return the thumbnails of some rows."""
        return Thumbnails(self.luma_NHW[rows], self.chroma_NHWC[rows])


class ThumbnailCollector:
    """Collects thumbnails; `add` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, int] = {}
        self._luma, self._chroma = bytearray(), bytearray()

    def add(self, path: str, _data: bytes, image_HWC: Array) -> None:
        """Add an image: its path, the file, and the decoded pixels, RGB or of other bands."""
        self.add_shrunk(path, shrunk(image_HWC))

    def add_shrunk(self, path: str, image_HWC: Array) -> None:
        """Add an image that `shrunk` has returned."""
        luma, chroma = _thumbnail(image_HWC)
        with self._lock:
            self._paths[path] = len(self._paths)
            self._luma += luma.tobytes()
            self._chroma += chroma.tobytes()

    def of(self, paths: pd.Series[str]) -> Thumbnails:
        """Return the thumbnails of some images, in their order."""
        places = np.array([self._paths[path] for path in paths], dtype=np.int64)
        luma = np.frombuffer(self._luma, np.uint8).reshape(-1, LUMA_SIDE, LUMA_SIDE)
        chroma = np.frombuffer(self._chroma, np.uint8).reshape(-1, CHROMA_SIDE, CHROMA_SIDE, 2)
        return Thumbnails(luma[places], chroma[places])


def _thumbnail(image_HWC: Array) -> tuple[Array, Array]:
    """Return luma and chroma; both sides are averaged separately, so the shape does not matter."""
    if image_HWC.shape[2] != 3:  # noqa: PLR2004 - RGB
        image_HWC = np.repeat(as_grey(image_HWC)[:, :, None], 3, axis=2)
    colours = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2YCrCb)
    luma = cv2.resize(colours[:, :, 0], (LUMA_SIDE,) * 2, interpolation=cv2.INTER_AREA)
    chroma = cv2.resize(colours, (CHROMA_SIDE,) * 2, interpolation=cv2.INTER_AREA)[:, :, 1:]
    return luma, chroma
