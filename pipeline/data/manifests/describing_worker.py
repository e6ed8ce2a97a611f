"""The worker that describes a part of many files: `python -P -m MODULE FOLDER`.

The launcher of a run may place several of them, on this machine or on others. Each describes a
range of the files as a single process would, and writes their rows as lines of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from patchline.pipeline.data.manifests.describing import Row
from patchline.pipeline.data.manifests.describing_processes import (
    DescribingJob,
    KeptImageArray,
    PartDescribed,
    rows_in_process,
)
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import missing_data
from patchline.pipeline.workers.worker_parts import read_lines, write_lines
from patchline.pipeline.workers.worker_process import worker_main
from patchline.plugin_api import ListedImage


def describe_part(job: DescribingJob, events: EventWriter) -> PartDescribed:
    """Describe the files of a part.

    Raises:
        DataError: if this machine does not have the data.
    """
    if not exists(job.root):
        raise missing_data(job.root)
    files = [(ListedImage(*listed), wanted) for listed, wanted in read_lines(job.files)]
    kept = None
    if job.kept and job.shape and job.resize:
        kept = KeptImageArray.of_size(job.kept, (len(files), *job.shape), job.resize)

    def counted() -> Iterator[Row]:
        for done, row in enumerate(rows_in_process(job.root, files, kept=kept), 1):
            events.progress(done, len(files), "images")
            yield row

    write_lines(job.rows, counted())
    return PartDescribed(files=len(files))


if __name__ == "__main__":
    worker_main(DescribingJob, describe_part)
