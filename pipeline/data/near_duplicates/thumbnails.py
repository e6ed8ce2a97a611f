"""Small thumbnails of images, and vectors that are close for images that look alike.

A vector holds the low spatial frequencies of an image (a discrete cosine transform of luma and
chroma), of its mirror image, or of a crop of it. Frequencies are weighted in proportion to their
height, because those of natural images fall so; the mean brightness is left out. Its length is 1,
so a scalar product is a cosine similarity, and brightness and contrast do not matter.

A crop is computed from the thumbnail by integrating the cosines over the part that it shows, so no
image is decoded or resized again. Shapes: N images, U and V vertical and horizontal frequencies.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np

from patchline.pipeline.data.reading.child_processes import processors
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


SEARCHED, COMPARED = (8, 4), (12, 4)
"""Frequencies of luma and of chroma in each direction."""
DETAIL_POWER = 1.5
_NO_COLOR = 128
_BLOCK = 8_192


class PictureView(NamedTuple):
    """A part of an image, in fractions of its sides."""

    top: float
    left: float
    side: float
    mirrored: bool = False


def vectors(thumbnails: Thumbnails, view: PictureView, rows: Array | None = None) -> Array:
    """Return the vectors to search by, of one view of some or all images: float32 (N, D)."""
    if rows is None:
        rows = np.arange(len(thumbnails.luma_NHW))

    def block(start: int) -> Array:
        return _vectors(thumbnails.take(rows[start : start + _BLOCK]), view, SEARCHED, 1)

    with ThreadPoolExecutor(processors()) as pool:
        return np.concatenate(list(pool.map(block, range(0, max(1, len(rows)), _BLOCK))))


def fine_vectors(thumbnails: Thumbnails, view: PictureView) -> Array:
    """Return the vectors that decide, with more details: float32 (N, D)."""
    return _vectors(thumbnails, view, COMPARED, DETAIL_POWER)


def _spectrum(pictures_NHW: Array, top: float, left: float, side: float, count: int) -> Array:
    """Return the cosine coefficients of one part of each picture: float32 (N, U, V)."""
    rows = _cosines(pictures_NHW.shape[1], top, side, count)
    columns = _cosines(pictures_NHW.shape[2], left, side, count)
    spectrum: Array = rows @ pictures_NHW.astype(np.float32) @ columns.T
    return spectrum


def _normalize(rows_ND: Array) -> Array:
    """Return the rows scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    scaled: Array = (rows_ND / np.maximum(lengths, 1e-6)).astype(np.float32)
    return scaled


def _vectors(
    thumbnails: Thumbnails, view: PictureView, frequencies: tuple[int, int], power: float
) -> Array:
    luma, chroma = frequencies
    planes = [
        (thumbnails.luma_NHW, luma),
        (thumbnails.chroma_NHWC[..., 0], chroma),
        (thumbnails.chroma_NHWC[..., 1], chroma),
    ]
    parts = []
    for plane, count in planes:
        vectors = _spectrum(plane, view.top, view.left, view.side, count)
        vectors[:, 0, 0] -= vectors[:, 0, 0] if plane is thumbnails.luma_NHW else _NO_COLOR
        if view.mirrored:
            vectors[:, :, 1::2] *= -1
        heights = np.add.outer(np.arange(count), np.arange(count))
        weights = ((heights + 1) ** power).astype(np.float32)
        parts.append((vectors * weights)[:, heights < count])
    return _normalize(np.concatenate(parts, axis=1))


@cache
def _cosines(pixels: int, start: float, side: float, count: int) -> Array:
    """Return the integral of each cosine of a crop over each pixel: (count, pixels)."""
    edges = np.clip((np.arange(pixels + 1) / pixels - start) / side, 0, 1)
    number = np.arange(count)[:, None]
    waves = np.sin(np.pi * number * edges) / (np.pi * np.maximum(number, 1))
    integrals = np.where(number > 0, np.sqrt(2) * np.diff(waves, axis=1), np.diff(edges))
    cosines: Array = integrals.astype(np.float32)
    return cosines
