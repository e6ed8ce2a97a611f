"""Find images that are crops, mirror images, rescaled or re-encoded versions of one another.

They are compared in this process, or, where the launcher of a run has several machines, some views
of all images on each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from patchline.pipeline.data.manifests.same_images import FILE, PIXELS, column_of, content_numbers
from patchline.pipeline.data.near_duplicates.comparing_job import (
    FEWEST_IMAGES_OF_PART,
    MODULE,
    RESOURCES,
    ComparingJob,
    PartCompared,
)
from patchline.pipeline.data.near_duplicates.matching import LABEL, SEARCHES, matches
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_parts import JobPart, number_of_parts, run_parts
from patchline.pipeline.workspace.files import workspace_folder

if TYPE_CHECKING:
    from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]
LEAST_SIDE = 16
"""Pixels; different images with fewer on a side, such as scanned digits, look alike."""


def near_duplicates(
    thumbnails: Thumbnails,
    rows: pd.DataFrame,
    on_progress: Progress | None = None,
    memory: SearchMemory | None = None,
) -> Array:
    """Return a number for each image, equal for images that are nearly or exactly the same.

    Args:
        thumbnails: of the images.
        rows: of the manifest, to know exact copies, of which one is compared, and the sizes; images
            below 16 pixels on a side are compared with none.
        on_progress: called while the views are looked up.
        memory: knows which images an earlier search has compared; these are compared with new
            ones only.
    """
    exact = content_numbers(rows)[0].to_numpy()
    _, first, contents = np.unique(exact, return_index=True, return_inverse=True)
    sides = rows[["width", "height"]].min(axis=1).to_numpy()[first]
    large = np.flatnonzero(sides >= LEAST_SIDE)
    keys = column_of(rows, PIXELS).where(lambda pixels: pixels != "", rows[FILE]).to_numpy()
    keys = keys[first[large]].astype(np.bytes_)
    new, pairs = memory.recall(keys) if memory else (None, np.zeros((2, 0), np.int64))
    matched = _matching_pairs(thumbnails.take(first[large]), on_progress, new)
    pairs = np.concatenate([pairs, matched], axis=1)
    if memory and len(keys):
        memory.keep(keys, pairs)
    a, b = large[pairs]
    graph = coo_array((np.ones(len(a), np.bool_), (a, b)), shape=(len(first), len(first)))
    _, numbers = connected_components(graph, directed=False)
    numbers_N: Array = numbers[contents]
    return numbers_N


def _matching_pairs(
    thumbnails: Thumbnails, on_progress: Progress | None = None, new: Array | None = None
) -> Array:
    """Return the pairs of rows (2, P) that nearly show the same; see `matches`."""
    divided = number_of_parts(RESOURCES, len(thumbnails.luma_NHW), FEWEST_IMAGES_OF_PART)
    if divided > 1:
        found = _by_workers(thumbnails, new, min(divided, len(SEARCHES)), on_progress)
    else:
        found = [pairs for pairs, _ in matches(thumbnails, on_progress, new=new)]
    pairs_2P: Array = np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)
    return pairs_2P


def _by_workers(
    thumbnails: Thumbnails, new: Array | None, divided: int, on_progress: Progress | None
) -> list[Array]:
    """Return the pairs that workers find, each for some of the views; these differ in cost."""
    done = [0] * divided

    def tell(number: int, event: Event) -> None:
        if on_progress and event["kind"] == "progress":
            done[number] = event["done"]
            on_progress(LABEL, sum(done), len(SEARCHES))

    place = workspace_folder.place()
    workspace_folder.make_folder(place)
    with TemporaryDirectory(dir=place, prefix=".building-") as scratch:
        images = Path(scratch) / "images.npz"
        luma, chroma = thumbnails
        if new is None:
            np.savez(images, luma=luma, chroma=chroma)
        else:
            np.savez(images, luma=luma, chroma=chroma, new=new)
        parts = []
        for number in range(divided):
            folder = Path(scratch) / f"part-{number}"
            views = tuple(range(len(SEARCHES))[number::divided])
            job = ComparingJob(images=images, views=views, pairs=folder / "pairs.npy")
            parts.append(JobPart[PartCompared](folder, job))
        with closing(run_parts(MODULE, parts, PartCompared, tell, RESOURCES)) as results:
            for _ in results:
                pass
        return [np.load(part.folder / "pairs.npy", allow_pickle=False) for part in parts]
