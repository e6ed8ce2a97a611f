"""A worker that doubles its rows: `python -P -m tests.pipeline.workers.doubling_worker DIR`."""

from __future__ import annotations

from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_parts import ROWS_FILE, read_lines, write_lines
from patchline.pipeline.workers.worker_process import Worker


class Doubling(FrozenModel):
    """Its job."""

    refused: int
    """A row that is an error."""


class Sum(FrozenModel):
    """Its result."""

    value: int


DOUBLING = Worker("tests.pipeline.workers.doubling_worker", Doubling, Sum)


def _double(job: Doubling, events: EventWriter) -> Sum:
    rows = list(read_lines(events.folder / ROWS_FILE))
    if job.refused in rows:
        raise DataError(f"{job.refused} is refused.")
    doubled = list(events.counted([2 * row for row in rows], len(rows), "rows"))
    write_lines(events.folder / "doubled.jsonl", doubled)
    return Sum(value=sum(doubled))


if __name__ == "__main__":
    DOUBLING.main(_double)
