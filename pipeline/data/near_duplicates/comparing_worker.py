"""Look up views of all images, some of them by each worker: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.near_duplicates.matching import (
    LABEL,
    SEARCHES,
    Array,
    Progress,
    Search,
    matches,
)
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_parts import (
    ROWS_FILE,
    PartDone,
    map_rows,
    number_of_parts,
    read_lines,
)
from patchline.pipeline.workers.worker_process import Worker

FEWEST_IMAGES_OF_PART = 20_000
"""With fewer, they are compared before the workers would have started."""
_PAIRS_FILE = "pairs.npy"


class ComparingJob(FrozenModel):
    """Among which images views are looked up; its rows are places in the list of all searches."""

    images: Path
    """The thumbnails, and which of them are new: NumPy's archive."""


COMPARING = Worker(
    "patchline.pipeline.data.near_duplicates.comparing_worker", ComparingJob, PartDone
)


def find_matching_pairs(
    thumbnails: Thumbnails,
    on_progress: Progress | None = None,
    new: Array | None = None,
    searches: Sequence[Search] = SEARCHES,
) -> Array:
    """Return the pairs of rows (2, P) that nearly show the same; see `matches`.

    A worker has no workers of its own.
    """
    found = [np.zeros((2, 0), np.int64)]
    divided = number_of_parts(len(thumbnails.luma_NHW), FEWEST_IMAGES_OF_PART)
    if divided == 1:
        found += [
            pairs for pairs, _ in matches(thumbnails, on_progress, new=new, searches=searches)
        ]
    else:
        divided = min(divided, len(SEARCHES))
        views = sorted(range(len(SEARCHES)), key=lambda view: view % divided)  # they differ in cost
        more: dict[str, Any] = {} if new is None else {"new": new}

        def job_of(folder: Path, _: Sequence[int]) -> ComparingJob:
            images = folder.with_name("images.npz")
            if not images.exists():
                np.savez(images, luma=thumbnails.luma_NHW, chroma=thumbnails.chroma_NHWC, **more)
            return ComparingJob(images=images)

        def tell(done: int) -> None:
            if on_progress:
                on_progress(LABEL, done, len(views))

        with map_rows(COMPARING, views, divided, job_of, tell) as parts:
            found += [np.load(folder / _PAIRS_FILE) for folder, *_ in parts]
    pairs_2P: Array = np.concatenate(found, axis=1)
    return pairs_2P


def compare_part(job: ComparingJob, events: EventWriter) -> PartDone:
    """Look up the views of a part."""
    with np.load(job.images, allow_pickle=False) as images:
        thumbnails = Thumbnails(images["luma"], images["chroma"])
        new = images.get("new")
    searches = [SEARCHES[place] for place in read_lines(events.folder / ROWS_FILE)]

    def tell(_: str, done: int, total: int) -> None:
        events.progress(done, total, "views")

    np.save(events.folder / _PAIRS_FILE, find_matching_pairs(thumbnails, tell, new, searches))
    return PartDone()


if __name__ == "__main__":
    COMPARING.main(compare_part)
