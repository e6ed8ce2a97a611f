"""The journal of a table of answers: every event in the order of events, one line of JSON each.

A line is on the disk before anybody is told that an answer was taken. What a crash has left of a
last line is no event; it stays in the file, and the next event begins a line of its own. Any other
line that is no event is damage, which is not passed over: an answer may have been in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchline.pipeline.data.labels.answers.standing import Event, check
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.json_lines import DamagedLineError, whole_lines


class Journal:
    """The events in a file.

    Args:
        file: need not exist.

    Attributes:
        cut: numbers of lines that a killed process has left unfinished.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.cut: list[int] = []
        self._read = self._lines = 0

    def new_events(self) -> list[Event]:
        """Return the events since the last call, those of other processes included.

        Raises:
            DataError: if the file cannot be read, or a line is damaged.
        """
        try:
            with self.file.open("rb") as opened:
                opened.seek(self._read)
                content = opened.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._damaged(f"it cannot be read ({error.strerror})") from error
        events = []
        try:
            for number, event in whole_lines(content, self._lines + 1):
                if event is None:
                    self.cut.append(number)
                else:
                    check(event, number)
                    events.append(event)
        except DamagedLineError as error:
            raise self._damaged(str(error)) from error
        self._lines += content.count(b"\n")
        self._read += content.rfind(b"\n") + 1
        return events

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"The journal of answers {self.file} is damaged: {what}. Restore it from a backup, or "
            "move it away: then the labels in the table beside it count."
        )

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
