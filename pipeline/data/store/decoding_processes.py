"""Decode images into a prepared store in child processes, which write to its mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.manifests.describing import FEW_PIXELS
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.child_processes import (
    answer_parent,
    pay_off,
    reading_map,
)
from patchline.pipeline.data.store.store_decoding import (
    LargeImageError,
    StoredImage,
    read_image,
)
from patchline.pipeline.data.store.store_shards import Pixels, StoreSpec
from patchline.pipeline.errors import DataError

Decode = Callable[[Sequence[StoredImage]], Iterator[None]]
"""Decodes images into their rows; yields for each that is done."""


def decode_into(
    images: Pixels,
    root: Path,
    stored: StoredImage,
    spec: StoreSpec,
    most_pixels: int | None = None,
) -> None:
    """Decode an image into its row.

    Args:
        images: the array of decoded images, uint8 (N, H, W, C).
        root: the folder or archive that its path is relative to.
        stored: the image.
        spec: how it is decoded and becomes H x W.
        most_pixels: larger images raise an error instead.

    Raises:
        DataError: if the file has changed since it was described.
        LargeImageError: if the image is larger than that.
    """
    with read_image(root, stored, spec, most_pixels) as image:
        images[stored.row] = image.resized_HWC


@contextmanager
def decoder(
    file: Path, images: Pixels, root: Path, spec: StoreSpec, count: int, fewest: int
) -> Iterator[Decode]:
    """Return what decodes images into their rows, by processes if there are many.

    Args:
        file: an array, which has its full size.
        images: the same array, mapped into memory.
        root: the folder or archive that the paths are relative to.
        spec: how an image becomes a row.
        count: number of images.
        fewest: the least number of images for which child processes are used.
    """
    here = partial(decode_into, images, root, spec=spec)
    job = [str(file), str(root), spec.resize, spec.mapping.json()]
    with reading_map(__name__, job, here, divided=pay_off(count, fewest)) as errors:

        def decode(batch: Sequence[StoredImage]) -> Iterator[None]:
            for error in errors(batch):
                if error:
                    raise DataError(error)
                yield

        yield decode


def _error(images: Pixels, root: Path, spec: StoreSpec, image: list[Any]) -> str | None:
    """Decode an image; return what went wrong, an empty text, or None if it is too large here."""
    try:
        decode_into(images, root, StoredImage(*image), spec, FEW_PIXELS)
    except LargeImageError:
        return None
    except DataError as error:
        return str(error)
    return ""


def _prepare(job: list[Any]) -> Callable[[Any], Any]:
    file, root, resize, mapping = job
    images = np.load(file, mmap_mode="r+", allow_pickle=False)
    _, height, width, channels = images.shape
    spec = StoreSpec(channels, height, width, resize, PixelMapping.of(mapping))
    return partial(_error, images, Path(root), spec)


if __name__ == "__main__":
    answer_parent(_prepare)
