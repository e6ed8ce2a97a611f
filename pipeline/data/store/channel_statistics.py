"""Mean and standard deviation of the pixels of each channel, counted exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from patchline.pipeline.data.store.store_shards import Pixels
from patchline.pipeline.workspace.files.stored_images import StoredImages


def channel_statistics(
    images: StoredImages, rows: np.ndarray[Any, Any], piece: int = 2**21
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation by channel on the scale 0 to 1, over the given rows.

    The values from 0 to 255 are counted, so the sums are integers and exact.

    Args:
        images: the store, mapped from disk.
        rows: the images to measure; at least one.
        piece: bytes of images to process at once; at most 8 times as much memory is used.
    """
    channels = images.shape[-1]
    together = max(1, piece // max(1, images[0].nbytes))
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(rows), together):
        pixels = images[rows[start : start + together]].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += _histogram(pixels[:, channel], piece)
    statistics = [_mean_and_deviation(histogram.tolist()) for histogram in counts]
    floor = 1 / 255  # do not amplify a channel without contrast
    return (
        tuple(round(mean, 6) for mean, _ in statistics),
        tuple(round(max(deviation, floor), 6) for _, deviation in statistics),
    )


def _histogram(values: Pixels, piece: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count the values piece by piece, because bincount widens each to eight bytes."""
    pieces = (values[start : start + piece] for start in range(0, len(values), piece))
    return sum((np.bincount(part, minlength=256) for part in pieces), start=np.zeros(256, np.int64))


def _mean_and_deviation(histogram: list[int]) -> tuple[float, float]:
    """Return both on the scale 0 to 1, computed from integers."""
    count = sum(histogram)
    total = sum(value * times for value, times in enumerate(histogram))
    squares = sum(value * value * times for value, times in enumerate(histogram))
    return total / (255 * count), math.sqrt(count * squares - total * total) / (255 * count)
