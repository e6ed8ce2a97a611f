"""Describe files, each part of many by a worker: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others. Each describes a
range of the files as a single process would, and writes their rows as lines of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from patchline.pipeline.data.manifests.describing import (
    Files,
    KeptImageArray,
    OnImage,
    Row,
    rows_in_process,
)
from patchline.pipeline.data.reading.child_processes import FEWEST_FILES
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.missing_data import missing_data, stays_here
from patchline.pipeline.workers.worker_parts import (
    ROWS_FILE,
    PartDone,
    map_rows,
    number_of_parts,
    read_lines,
    write_lines,
)
from patchline.pipeline.workers.worker_process import Worker
from patchline.plugin_api import ListedImage

FEWEST_FILES_OF_PART = 2000
"""With fewer, a part is described before its worker would have started."""
_DESCRIBED_FILE, _IMAGES_FILE = "described.jsonl", "images.npy"


class DescribingJob(FrozenModel):
    """Where the files of a part are, and what is kept of them."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    size: tuple[int, int] | None = None
    """Height and width in which the decoded images are kept, in an array; None to keep none."""
    resize: ResizePolicy | None = None
    """How an image gets this size."""


DESCRIBING = Worker("patchline.pipeline.data.manifests.describing_worker", DescribingJob, PartDone)


def rows_of(
    root: Path,
    files: Files,
    on_image: OnImage | None = None,
    fewest: int = FEWEST_FILES,
    kept: KeptImageArray | None = None,
) -> Iterator[Row]:
    """Yield the row of each file, in their order; see `rows_in_process`."""
    divided = number_of_parts(len(files), FEWEST_FILES_OF_PART)
    if on_image is not None or divided == 1 or stays_here(root, (each.path for each, _ in files)):
        yield from rows_in_process(root, files, on_image, fewest, kept)
        return
    job = DescribingJob(root=root.absolute(), size=kept and kept.size, resize=kept and kept.resize)
    first = 0
    with map_rows(DESCRIBING, files, divided, lambda *_: job) as parts:
        for folder, own, _ in parts:
            if kept:
                kept.take(folder / _IMAGES_FILE, first)
            yield from read_lines(folder / _DESCRIBED_FILE)
            first += len(own)


def describe_part(job: DescribingJob, events: EventWriter) -> PartDone:
    """Describe the files of a part.

    Raises:
        DataError: if this machine does not have the data.
    """
    if not exists(job.root):
        raise missing_data(job.root)
    listed = read_lines(events.folder / ROWS_FILE)
    files = [(ListedImage(*each), wanted) for each, wanted in listed]
    kept = None
    if job.size and job.resize:
        file = events.folder / _IMAGES_FILE
        kept = KeptImageArray.of_size(file, (len(files), *job.size), job.resize)
    rows = rows_in_process(job.root, files, kept=kept)
    write_lines(events.folder / _DESCRIBED_FILE, events.counted(rows, len(files), "images"))
    return PartDone()


if __name__ == "__main__":
    DESCRIBING.main(describe_part)
