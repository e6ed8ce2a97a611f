"""Run a worker for each part of a large job, as many at a time as the launcher has room for.

Names that are not UTF-8 survive: JSON escapes what a settings file could not hold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.launcher import Resources, RunningWorker
from patchline.pipeline.workers.worker_process import WorkerFolder, task_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Result = TypeVar("Result", bound=FrozenModel)
_POLL_SECONDS = 0.05
_PARTS_FOR_EACH = 2
"""Parts for each slot: the slowest part then delays the end by less."""


@dataclass(frozen=True)
class JobPart(Generic[Result]):
    """One part of a job."""

    folder: Path
    job: FrozenModel


def number_of_parts(resources: Resources, units: int, fewest: int) -> int:
    """Return into how many parts to divide a job; one if it is not worth it.

    Args:
        resources: of the worker of each part.
        units: of the job, such as images.
        fewest: units of a part.
    """
    slots = worker_start.current_launcher().slots(resources)
    return 1 if slots == 1 else max(1, min(_PARTS_FOR_EACH * slots, units // fewest))


def run_parts(
    module: str,
    parts: Sequence[JobPart[Result]],
    result_class: type[Result],
    on_event: Callable[[int, Event], None],
    resources: Resources = Resources(),  # noqa: B008 - a frozen value
) -> Generator[Result, None, None]:
    """Run a worker for each part, and yield their results in the order of the parts.

    Whatever happens, no worker is left when this ends.

    Args:
        module: of the workers.
        parts: with a folder each.
        result_class: of the results.
        on_event: called with the number of a part and each of its events.
        resources: of each worker.

    Raises:
        PipelineError: the error of the first worker that failed.
    """
    launcher = worker_start.current_launcher()
    slots = launcher.slots(resources)
    results: dict[int, Result] = {}
    running: dict[int, tuple[RunningWorker, WorkerFolder]] = {}
    waiting = list(enumerate(parts))[::-1]
    shown = 0
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < slots:
                number, part = waiting.pop()
                shared = WorkerFolder(part.folder, part.job)
                worker = launcher.start(task_of(module, part.folder, part.job, resources))
                stack.callback(worker.stop)
                running[number] = worker, shared
            for number, (worker, shared) in list(running.items()):
                code = worker.poll()
                for event in shared.new_events():
                    on_event(number, event)
                if code is not None:
                    worker.stop()
                    del running[number]
                    results[number] = shared.result(code, module, result_class)
            while shown in results:
                yield results.pop(shown)
                shown += 1
            if running:
                time.sleep(_POLL_SECONDS)


def write_lines(file: Path, lines: Iterable[Any]) -> Path:
    """Write each value as a line, create the folder if needed, and return the file."""
    make_folder(file.parent)
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)
    return file


def read_lines(file: Path) -> Iterator[Any]:
    """Yield the value of each line; tuples have become lists."""
    with file.open(encoding="utf-8") as opened:
        yield from map(json.loads, opened)
