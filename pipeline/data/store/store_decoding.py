"""Read one image of a store: the file that was described, decoded, in the store's format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.data.reading.decoding import UndecodableImageError, reserve_and_decode
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.data.store.store_shards import ReadImage, StoreSpec
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace import remote_data


class StoredImage(NamedTuple):
    """An image of a store."""

    row: int
    path: str
    sha256: str
    """The SHA-256 digest of its file when it was described."""


class LargeImageError(Exception):
    """The image has more pixels than asked for."""


@contextmanager
def read_image(
    root: Path, image: StoredImage, spec: StoreSpec, most_pixels: int | None = None
) -> Iterator[ReadImage]:
    """Read, decode and resize an image, whose memory is reserved while the block runs.

    Args:
        root: the folder or archive that its path is relative to.
        image: the image.
        spec: the format that it gets.
        most_pixels: larger images raise an error instead.

    Raises:
        DataError: if the file has changed since it was described.
        LargeImageError: if the image is larger than that.
    """

    def check(header: tuple[int, int, str]) -> None:
        if most_pixels and header[0] * header[1] > most_pixels:
            raise LargeImageError

    try:
        with root_image_bytes(root, image.path) as data:
            if hashlib.sha256(data).hexdigest() != image.sha256:
                remote_data.forget(root / image.path)  # so that the next run downloads it again
                raise DataError(f"{image.path} changed while it was being read. Run again.")
            with reserve_and_decode(
                data,
                spec.channels,
                known_whole=True,
                on_header=check,
                jpeg_decoder=decode_jpeg,
                mapping=spec.mapping,
            ) as pixels_HWC:
                height, width = pixels_HWC.shape[:2]
                resized_HWC = resize_image(pixels_HWC, spec.height, spec.width, spec.resize)
                yield ReadImage(data, height * width, resized_HWC)
    except UndecodableImageError as error:
        raise DataError(f"{image.path}: {error}. Restore it, or run again.") from error
