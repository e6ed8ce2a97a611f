"""Images by row, whether an array holds them or they are decoded when they are asked for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class StoredImages(Protocol):
    """The images of a prepared store, uint8 (N, H, W, C)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, height, width, channels."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an image (H, W, C), or several (n, H, W, C) for a slice or an array of rows."""
