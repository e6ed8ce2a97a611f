"""Decode images into a prepared store in child processes, which write to its mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from patchline.pipeline.data.manifests.describing import FEW_PIXELS
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.child_processes import (
    ChildProcesses,
    answer_parent,
    pay_off,
    threads,
)
from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.data.store.store_decoding import (
    LargeImageError,
    StoredImage,
    read_image,
)
from patchline.pipeline.data.store.store_shards import Pixels, StoreSpec
from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.launcher import Resources

MODULE = "patchline.pipeline.data.store.decoding_worker"
RESOURCES = Resources()
"""All cores of one machine."""
FEWEST_IMAGES_OF_PART = 2000
"""With fewer, a part is decoded before its worker would have started."""


class DecodingJob(FrozenModel):
    """The images of a part, and the format that they get."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    files: Path
    """Lines of JSON: path and SHA-256 of each image, in their order."""
    images: Path
    """The array to write, uint8 (N, H, W, C)."""
    shape: tuple[int, int, int]
    """Height, width and channels."""
    resize: ResizePolicy
    mapping: dict[str, Any]
    """What becomes of values that are not of 8 bits, as JSON."""

    @property
    def spec(self) -> StoreSpec:
        """The format of an image."""
        height, width, channels = self.shape
        return StoreSpec(channels, height, width, self.resize, PixelMapping.of(self.mapping))


class PartDecoded(FrozenModel):
    """The array is there."""

    images: int


Decode = Callable[[Sequence[StoredImage]], Iterator[None]]
"""Decodes images into their rows; yields for each that is done."""
_BATCH = 50
_LARGE = "large"


def decode_into(
    images: Pixels,
    root: Path,
    stored: StoredImage,
    spec: StoreSpec,
    most_pixels: int | None = None,
) -> None:
    """Decode an image into its row.

    Args:
        images: uint8 (N, H, W, C).
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


class DecodingProcesses:
    """Child processes that decode into one store.

    Args:
        images_file: the store's array, which has its full size.
        root: the folder or archive that the paths are relative to.
        spec: how an image becomes a row.
    """

    def __init__(self, images_file: Path, root: Path, spec: StoreSpec) -> None:
        self._root, self._spec = root, spec
        self._images: Pixels = np.load(images_file, mmap_mode="r+", allow_pickle=False)
        self._children = ChildProcesses(
            __name__, [str(images_file), str(root), spec.resize, spec.mapping.json()]
        )

    def __enter__(self) -> Self:
        self._children.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._children.__exit__()

    def decode(self, images: Sequence[StoredImage]) -> Iterator[None]:
        """Decode images into their rows; yields for each that is done.

        Raises:
            DataError: if a file has changed since it was described.
        """
        batches = [images[first : first + _BATCH] for first in range(0, len(images), _BATCH)]
        answers = self._children.answers(batches, lambda batch: [_LARGE] * len(batch))
        for batch, results in zip(batches, answers, strict=True):
            for each, result in zip(batch, results, strict=True):
                if result == _LARGE:
                    decode_into(self._images, self._root, each, self._spec)
                elif result:
                    raise DataError(result)
                yield


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
        fewest: child processes decode so many or more.
    """
    if pay_off(count, fewest):
        with DecodingProcesses(file, root, spec) as children:
            yield children.decode
        return
    with threads() as pool:

        def decode(batch: Sequence[StoredImage]) -> Iterator[None]:
            return pool.map(partial(decode_into, images, root, spec=spec), batch)

        yield decode


def _result(images: Pixels, root: Path, spec: StoreSpec, image: StoredImage) -> str:
    """Decode an image; return what went wrong, or an empty text."""
    try:
        decode_into(images, root, image, spec, FEW_PIXELS)
    except LargeImageError:
        return _LARGE
    except DataError as error:
        return str(error)
    return ""


def _prepared(job: list[Any]) -> Callable[[Any], Any]:
    file, root, resize, mapping = job
    images = np.load(file, mmap_mode="r+", allow_pickle=False)
    _, height, width, channels = images.shape
    spec = StoreSpec(channels, height, width, resize, PixelMapping.of(mapping))
    result = partial(_result, images, Path(root), spec)
    return lambda question: [result(StoredImage(*each)) for each in question]


if __name__ == "__main__":
    answer_parent(_prepared)
