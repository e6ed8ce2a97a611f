"""Decode images, each part of many by a worker: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from patchline.pipeline.data.reading.child_processes import FEWEST_FILES
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.data.store.decoding_processes import decoder
from patchline.pipeline.data.store.store_decoding import StoredImage
from patchline.pipeline.data.store.store_shards import Pixels, StoreSpec
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.missing_data import missing_data
from patchline.pipeline.workers.worker_parts import (
    ROWS_FILE,
    PartDone,
    map_rows,
    number_of_parts,
    read_lines,
)
from patchline.pipeline.workers.worker_process import Worker

FEWEST_IMAGES_OF_PART = 2000
"""With fewer, a part is decoded before its worker would have started."""
_IMAGES_FILE = "images.npy"


class DecodingJob(FrozenModel):
    """Where the images of a part are, and the format that they get."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    spec: StoreSpec


DECODING = Worker("patchline.pipeline.data.store.decoding_worker", DecodingJob, PartDone)


def decode_images(
    root: Path, images: Sequence[StoredImage], spec: StoreSpec
) -> Iterator[tuple[int, Pixels]]:
    """Yield the row and the pixels of each image as workers decode it, in order."""
    job = DecodingJob(root=root.absolute(), spec=spec)
    parts = number_of_parts(len(images), FEWEST_IMAGES_OF_PART)
    with map_rows(DECODING, images, parts, lambda *_: job) as results:
        for folder, own, _ in results:
            pixels = np.load(folder / _IMAGES_FILE, mmap_mode="r")
            yield from zip((each.row for each in own), pixels, strict=True)


def decode_part(job: DecodingJob, events: EventWriter) -> PartDone:
    """Decode the images of a part.

    Raises:
        DataError: if this machine does not have the data, or a file has changed.
    """
    if not exists(job.root):
        raise missing_data(job.root)
    listed = read_lines(events.folder / ROWS_FILE)
    images = [StoredImage(row, *each[1:]) for row, each in enumerate(listed)]
    spec, file = job.spec, events.folder / _IMAGES_FILE
    shape = spec.shape(len(images))
    pixels = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    with decoder(file, pixels, job.root, spec, len(images), FEWEST_FILES) as decode:
        for _ in events.counted(decode(images), len(images), "images"):
            pass
    pixels.flush()
    return PartDone()


if __name__ == "__main__":
    DECODING.main(decode_part)
