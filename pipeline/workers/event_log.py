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

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchline.pipeline.workspace.files.workspace_folder import make_folder

Event = dict[str, Any]
_LONGEST_LINE = 2000


class EventWriter:
    """Append events to a file, one whole line at a time."""

    def __init__(self, file: Path, *, progress_interval_seconds: float = 0.5) -> None:
        make_folder(file.parent)
        self._path, self._next = file, len(read_events(file))
        self._file = file.open("a", encoding="utf-8", buffering=1)
        self._interval = progress_interval_seconds
        self._last_progress = 0.0

    def write(self, kind: str, **values: Any) -> None:
        """Append one event."""
        event = {"seq": self._next, "time": time.time(), "kind": kind, **values}
        self._file.write(json.dumps(event) + "\n")
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
            done: units of work that are done.
            total: all units.
            unit: what they are.
            details: returns further values; called only if the event is written.
            values: further values.
        """
        now = time.monotonic()
        if done >= total or now - self._last_progress >= self._interval:
            self._last_progress = now
            self.write("progress", done=done, total=total, unit=unit, **values, **details())

    def catch_up(self) -> None:
        """Number the next events after those that another process has appended and ended."""
        self._next = len(read_events(self._path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EventReader:
    """Read what was appended since the last call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def new_events(self) -> list[Event]:
        """Return the events of all lines that have been completed since."""
        return [json.loads(line) for line in self._new_lines()]

    def _new_lines(self) -> list[bytes]:
        if not self._file.exists():
            return []
        with self._file.open("rb") as opened:
            opened.seek(self._offset)
            data = opened.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


class LineReader(EventReader):
    """Read new lines of a plain text file as events of the kind `log`; skip existing ones."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._offset = file.stat().st_size if file.exists() else 0

    def new_events(self) -> list[Event]:
        """Return an event for each non-empty line that has been completed since."""
        lines = [line.decode(errors="replace").strip() for line in self._new_lines()]
        return [{"kind": "log", "message": line[:_LONGEST_LINE]} for line in lines if line]


def read_events(file: Path) -> list[Event]:
    """Return all complete events of a file; cut off a partial line that a killed writer left."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with file.open("r+b") as opened:
            opened.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]
