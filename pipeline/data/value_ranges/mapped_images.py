"""Decode the images of a scan whose values are not of 8 bits, once their range is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping, Values
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decoded
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.value_ranges.data_values import DataValues, choose_values, summaries
from patchline.pipeline.errors import DataError

OnImage = Callable[[str, bytes, Values], None]


def usable_values(
    manifest: pd.DataFrame, root: Path, settings: DataConfig, on_image: OnImage | None = None
) -> DataValues:
    """Decide like `chosen_values`, for a run.

    Raises:
        DataError: if nothing says which bands are used.
        ConfigError: if the bands that are set are not there.
    """
    return chosen_values(manifest, root, settings, on_image, only_usable=True)


def chosen_values(
    manifest: pd.DataFrame,
    root: Path,
    settings: DataConfig,
    on_image: OnImage | None = None,
    *,
    only_usable: bool = False,
) -> DataValues:
    """Decide what becomes of values and bands, then decode the images that had to wait for it.

    Args:
        manifest: of all files.
        root: the folder or archive that its paths are relative to.
        settings: may fix the range and the bands.
        on_image: called for these images, in a thread.
        only_usable: raise the problem, if there is one.
    """
    rows = manifests.usable(manifest)
    values = choose_values(rows, root, settings)
    if values.problem and only_usable:
        raise values.problem
    if on_image:
        show_mapped(root, rows, values.mapping, on_image)
    return values


def show_mapped(root: Path, rows: pd.DataFrame, mapping: PixelMapping, on_image: OnImage) -> None:
    """Call a function for each image that was not decoded when it was described, or all white.

    Args:
        root: the folder or archive that the paths are relative to.
        rows: the usable images of a manifest.
        mapping: what becomes of their values.
        on_image: called in a thread with the path, the file and the decoded RGB image (H, W, 3).

    Raises:
        DataError: if a file has changed meanwhile.
    """
    waiting = [each.is_deep or (each.hidden and not mapping.opacity) for each in summaries(rows)]

    def show(path: str) -> None:
        try:
            with (
                root_image_bytes(root, path) as data,
                decoded(data, 3, mapping=mapping) as image_HWC,
            ):
                on_image(path, data, image_HWC)
        except UndecodableImageError as error:
            raise DataError(f"{path}: {error}. Restore it, or run again.") from error

    with threads() as pool:
        for _ in pool.map(show, rows["path"][waiting]):
            pass
