"""The numbered events that a worker process writes and its parent reads.

Each line is a JSON object: `seq` counts from 0 without gaps, `time` is in seconds since the epoch,
`kind` decides the other keys.

    progress    done, total, unit, and additional values for the progress bar
    metrics     step, values
    artifact    path, name: a file to keep with the run
    warning     message
    note        message: something to show that is no warning
    log         message: a line that the worker or a library printed; it has no `seq`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Event = dict[str, Any]
OnEvent = Callable[[Event], None]
Value = TypeVar("Value")


class EventWriter:
    """Append events to a file, one whole line at a time.

    Attributes:
        folder: the folder that holds the file; it is the worker's.
    """

    def __init__(self, file: Path, *, progress_interval_seconds: float = 0.5) -> None:
        self.folder = file.parent
        make_folder(self.folder)
        self._log = AppendLog(file)
        self.catch_up()
        self._interval = progress_interval_seconds
        self._last_progress = 0.0

    def write(self, kind: str, **values: Any) -> None:
        """Append one event."""
        self._log.append({"seq": self._next, "time": time.time(), "kind": kind, **values})
        self._next += 1

    def progress(
        self,
        done: int,
        total: int,
        unit: str,
        *,
        details: Callable[[], dict[str, Any]] = dict,
        **values: Any,
    ) -> None:
        """Append a progress event, unless the last one is less than half a second old.

        Args:
            done: the number of units that are done.
            total: the number of all units.
            unit: the name of the units, for messages.
            details: returns further values; called only if the event is written.
            values: further values of the event, by name.
        """
        now = time.monotonic()
        if done >= total or now - self._last_progress >= self._interval:
            self._last_progress = now
            self.write("progress", done=done, total=total, unit=unit, **values, **details())

    def counted(self, results: Iterable[Value], total: int, unit: str) -> Iterator[Value]:
        """Yield the results of some units of work, and append the progress."""
        for done, result in enumerate(results, 1):
            self.progress(done, total, unit)
            yield result

    def catch_up(self) -> None:
        """Number the next events after those that another process has appended and ended."""
        self._log.repair()
        self._next = len(read_events(self._log.file))


def read_events(file: Path) -> list[Event]:
    """Return all complete events of a file."""
    return list(AppendLog(file).new_values())
