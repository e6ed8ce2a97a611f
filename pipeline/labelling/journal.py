"""The journal of a table of answers: every event in the order of events, one line of JSON each.

A line is on the disk before anybody is told that an answer was taken. What a crash has left of a
last line is no event; it stays in the file, and the next event begins a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchline.pipeline.files.atomic_files import storage_errors

Event = dict[str, Any]


class Journal:
    """The events in a file.

    Args:
        file: need not exist.

    Attributes:
        damaged: lines that are no events.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.damaged = 0
        self._read = 0

    def new_events(self) -> list[Event]:
        """Return the events since the last call, those of other processes included."""
        try:
            with self.file.open("rb") as opened:
                opened.seek(self._read)
                content = opened.read()
        except FileNotFoundError:
            return []
        whole = content.rfind(b"\n") + 1
        self._read += whole
        events = [_event(line) for line in content[:whole].splitlines() if line.strip()]
        self.damaged += events.count(None)
        return [event for event in events if event is not None]

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event, and wait until it is on the disk.

        Raises:
            StorageError: if the disk is full or read-only, or the file is a link; nothing counts
                then.
        """
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        with storage_errors(self.file):
            descriptor = os.open(self.file, flags, 0o644)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                _write(descriptor, line, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _write(descriptor: int, line: bytes, size: int) -> None:
    """Write a line behind a file of this size, or nothing at all."""
    written = 0
    try:
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
