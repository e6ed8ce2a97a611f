"""The worker that looks up some views of all images: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others.
"""

from __future__ import annotations

import numpy as np

from patchline.pipeline.data.near_duplicates.matching import (
    SEARCHES,
    ComparingJob,
    PartCompared,
    matches,
)
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import worker_main


def compare_part(job: ComparingJob, events: EventWriter) -> PartCompared:
    """Look up the views of a part."""
    with np.load(job.images, allow_pickle=False) as images:
        thumbnails = Thumbnails(images["luma"], images["chroma"])
        new = images.get("new")
    searches = [SEARCHES[place] for place in job.views]

    def tell(_: str, done: int, total: int) -> None:
        events.progress(done, total, "views")

    found = [pair for pair, _ in matches(thumbnails, tell, new=new, searches=searches)]
    pairs = np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)
    np.save(job.pairs, pairs)
    return PartCompared(pairs=pairs.shape[1])


if __name__ == "__main__":
    worker_main(ComparingJob, compare_part)
