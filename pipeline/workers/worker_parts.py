"""Divide the rows of a large job among workers, as many at a time as the launcher has room for.

Names that are not UTF-8 survive: JSON escapes what a settings file could not hold.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Resources, RunningWorker
from patchline.pipeline.workers.worker_process import (
    Job,
    Result,
    Worker,
    WorkerFolder,
    check_cancelled,
)
from patchline.pipeline.workspace.files import workspace_folder

ROWS_FILE = "rows.jsonl"
"""In the folder of a worker: its rows."""
_ALONE = Resources()
"""All cores of one machine."""
_POLL_SECONDS = 0.05
_PARTS_FOR_EACH = 2
"""Parts for each slot: the slowest part then delays the end by less."""


class PartDone(FrozenModel):
    """What a worker has done with its rows is in its folder."""

    warning: str = ""
    """What is to be said about the rows, if anything is."""


def number_of_parts(rows: int, fewest: int) -> int:
    """Return into how many parts to divide rows; one if it is not worth it.

    Args:
        rows: number of rows, such as images.
        fewest: the smallest number of rows in a part.
    """
    slots = worker_start.current_launcher().slots(_ALONE)
    return 1 if slots == 1 else max(1, min(_PARTS_FOR_EACH * slots, rows // fewest))


@contextmanager
def map_rows(
    worker: Worker[Job, Result],
    rows: Sequence[Any],
    parts: int,
    job_of: Callable[[Path, Sequence[Any]], Job],
    on_done: Callable[[int], object] = lambda _: None,
) -> Iterator[Iterator[tuple[Path, Sequence[Any], Result]]]:
    """Run a worker for each part of the rows; return the folder, rows and result of each, in order.

    A folder is removed when the next one is asked for, and no worker outlives the block.

    Args:
        worker: reads its rows from `ROWS_FILE`, and writes into its folder.
        rows: what JSON can hold.
        parts: the number of parts that the rows are divided into.
        job_of: returns the job of a part, given its folder and its rows.
        on_done: called with the number of rows that are done.

    Raises:
        PipelineError: by the iterator, the error of the first worker that failed.
    """
    place = workspace_folder.place()
    workspace_folder.make_folder(place)
    running: dict[Path, tuple[RunningWorker, WorkerFolder]] = {}
    bounds = pairwise(len(rows) * each // parts for each in range(parts + 1))
    with TemporaryDirectory(dir=place, prefix=".building-") as scratch, ExitStack() as stack:
        divided = {
            Path(scratch) / f"part-{number}": rows[first:stop]
            for number, (first, stop) in enumerate(bounds)
        }
        try:
            yield _results(worker, divided, job_of, on_done, running)
        finally:
            for process, _ in running.values():
                stack.callback(process.stop)


def _results(
    worker: Worker[Job, Result],
    parts: Mapping[Path, Sequence[Any]],
    job_of: Callable[[Path, Sequence[Any]], Job],
    on_done: Callable[[int], object],
    running: dict[Path, tuple[RunningWorker, WorkerFolder]],
) -> Iterator[tuple[Path, Sequence[Any], Result]]:
    launcher, done = worker_start.current_launcher(), dict.fromkeys(parts, 0)
    slots, waiting = launcher.slots(_ALONE), iter(parts.items())
    finished: dict[Path, Result] = {}
    for shown, own in parts.items():
        while shown not in finished:
            for folder, rows in islice(waiting, slots - len(running)):
                write_lines(folder / ROWS_FILE, rows)
                job = job_of(folder, rows)
                shared = WorkerFolder(folder, job)
                running[folder] = launcher.start(worker.task(folder, job, _ALONE)), shared
            for folder, (process, shared) in list(running.items()):
                code = process.poll()
                for event in shared.new_events():
                    if event["kind"] == "progress":
                        done[folder] = event["done"]
                        on_done(sum(done.values()))
                if code is not None:
                    process.stop()
                    del running[folder]
                    finished[folder] = shared.result(code, worker)
            if shown not in finished:
                check_cancelled()
                time.sleep(_POLL_SECONDS)
        yield shown, own, finished.pop(shown)
        shutil.rmtree(shown)


def write_lines(file: Path, lines: Iterable[Any]) -> Path:
    """Write each value as a line, create the folder if needed, and return the file."""
    workspace_folder.make_folder(file.parent)
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)
    return file


def read_lines(file: Path) -> Iterator[Any]:
    """Yield the value of each line; tuples have become lists."""
    with file.open(encoding="utf-8") as opened:
        yield from map(json.loads, opened)
