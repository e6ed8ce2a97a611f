"""The worker that decodes a part of the images of a store: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others.
"""

from __future__ import annotations

import numpy as np

from patchline.pipeline.data.reading.child_processes import FEWEST_FILES
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.data.store.decoding_processes import DecodingJob, PartDecoded, decoder
from patchline.pipeline.data.store.store_decoding import StoredImage
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import missing_data
from patchline.pipeline.workers.worker_parts import read_lines
from patchline.pipeline.workers.worker_process import worker_main


def decode_part(job: DecodingJob, events: EventWriter) -> PartDecoded:
    """Decode the images of a part.

    Raises:
        DataError: if this machine does not have the data, or a file has changed.
    """
    if not exists(job.root):
        raise missing_data(job.root)
    images = [StoredImage(row, *each) for row, each in enumerate(read_lines(job.files))]
    shape = (len(images), *job.shape)
    array = np.lib.format.open_memmap(job.images, mode="w+", dtype=np.uint8, shape=shape)
    with decoder(job.images, array, job.root, job.spec, len(images), FEWEST_FILES) as decode:
        for done, _ in enumerate(decode(images), 1):
            events.progress(done, len(images), "images")
    array.flush()
    return PartDecoded(images=len(images))


if __name__ == "__main__":
    worker_main(DecodingJob, decode_part)
