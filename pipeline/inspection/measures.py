"""Measure every image while it is read: format, color profile, light, sharpness, a thumbnail.

The images are not opened a second time, and per image about 800 bytes are kept.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails
from patchline.pipeline.data.reading.color_profile import foreign_profile
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of
from patchline.pipeline.data.reading.image_quality import as_grey, quality_of_grey, shrunk

COLUMNS = ["format", "profile", "brightest", "contrast", "entropy", "sharpness"]
Array = np.ndarray[Any, Any]


class ImageMeasures:
    """Collects the measures of images; `add` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, int] = {}
        self._values: list[tuple[str, str, float, float, float, float]] = []
        self._thumbnails = ThumbnailCollector()

    def add(self, path: str, data: bytes, image_HWC: Array) -> None:
        """Measure one image: its path, the file, and the decoded RGB pixels."""
        small = shrunk(image_HWC)
        kind, profile = format_of(data[:HEAD_BYTES]) or "", foreign_profile(data)
        values = (kind, profile, *quality_of_grey(as_grey(small)))
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
