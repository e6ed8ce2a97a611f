"""Sample the pixel values of a data set, the same ones whatever the order of its files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues, Values, chosen_bands
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoding import UndecodableImageError, deep_values
from patchline.pipeline.data.reading.image_root import root_image_bytes

_FILES, _VALUES = 256, 4096
Listed = tuple[str, str]
"""The path of a file and its SHA-256."""


def value_sample(root: Path, files: Sequence[Listed], bands: tuple[int, ...]) -> Values:
    """Return known values of some files in ascending order, as 64-bit floating-point numbers.

    Args:
        root: the folder or archive that the paths are relative to.
        files: with values of one type; those whose digests come first are read.
        bands: which count; empty for all but opacity.
    """
    chosen = sorted(files, key=lambda listed: listed[1])[:_FILES]

    def some(listed: Listed) -> Values:
        try:
            with root_image_bytes(root, listed[0]) as data, deep_values(data) as values:
                return _some(values, bands) if values else np.empty(0)
        except UndecodableImageError:  # gone since it was described, which decoding will say
            return np.empty(0)

    pool: ThreadPoolExecutor
    with threads() as pool:
        parts = list(pool.map(some, [chosen[place] for place in range(len(chosen))]))
    return np.sort(np.concatenate([np.empty(0), *parts]))


def _some(values: FileValues, bands: tuple[int, ...]) -> Values:
    samples = values.samples_HWN
    if bands:
        samples = chosen_bands(samples, bands)
    elif values.opacity:
        samples = np.delete(samples, values.colors, axis=2)
    flat = samples.reshape(-1)
    kept = flat[:: max(1, -(-flat.size // _VALUES))]
    kept = kept[~values.missing(kept)]
    return kept.astype(np.float64)
