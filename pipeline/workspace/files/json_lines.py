"""Files of JSON values, one a line, that processes append to and that a kill may leave unfinished.

The rule for all of them: what a killed process has left of a last line is no line. It is not read,
and whoever appends begins a line of its own after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from patchline.pipeline.workspace.files.atomic_files import storage_errors


class WholeLine(NamedTuple):
    """A line that has an end."""

    number: int
    """Number of the line, from 1."""
    content: dict[str, Any] | None
    """None if it is cut off: the rest of a line that a killed process has begun."""


class DamagedLineError(ValueError):
    """A line is no JSON object, and no process can have left it so; the text says which and why."""


Check = Callable[[dict[str, Any], int], None]
"""Called with an object and the number of its line; raises `DamagedLineError`."""


class AppendLog:
    """Lines that processes append to a file.

    Args:
        file: the file, which need not exist; its folder exists before a line is appended.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = self._lines = 0

    def append(self, value: Any) -> None:
        """Append a JSON value as a line; see `append_lines`."""
        self.append_lines(line_of(value))

    def append_lines(self, lines: bytes, *, synced: bool = False) -> None:
        """Append whole lines.

        A full disk may leave the beginning of them. What is cut off there is no line; the rest of
        the file stays, since another process may have appended meanwhile.

        Args:
            lines: each with its end.
            synced: whether to wait until they are on the disk.

        Raises:
            StorageError: if the disk is full or read-only, or the file is a link.
        """
        with storage_errors(self.file), open(self.file, "a+b", 0, opener=_open_unlinked) as opened:
            if opened.seek(0, os.SEEK_END):
                opened.seek(-1, os.SEEK_END)
                lines = lines if opened.read(1) == b"\n" else b"\n" + lines
            while lines:
                lines = lines[opened.write(lines) :]
            if synced:
                os.fsync(opened.fileno())

    def repair(self) -> bool:
        """Remove a last line that has no end, and return whether there was one.

        Nobody may append meanwhile.
        """
        content = self.file.read_bytes() if self.file.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.file, whole)
        return whole < len(content)

    def skip(self) -> None:
        """Take what is there now as read."""
        self._read = self.file.stat().st_size if self.file.exists() else 0

    def new_content(self, most: int = -1) -> bytes:
        """Return the whole lines since the last call: all, or about so many bytes of them."""
        content = self._unread(most)
        self._read += len(content)
        return content

    def new_values(self, read: Callable[[bytes], Any] = json.loads) -> Iterator[Any]:
        """Yield the values of the whole lines since the last call, without damaged ones.

        Args:
            read: a function that returns the value of a line, or raises a ValueError, TypeError or
                OverflowError.
        """
        for line in self.new_content().splitlines():
            with suppress(ValueError, TypeError, OverflowError):
                yield read(line)

    def new_objects(self, check: Check) -> list[WholeLine]:
        """Return the JSON objects since the last call, without blank lines.

        Args:
            check: called with each object.

        Raises:
            DamagedLineError: at the first damaged line; all are then read again by the next call.
        """
        content = self._unread()
        objects = list(_objects(content.splitlines(), self._lines + 1))
        for number, read in objects:
            if read is not None:
                check(read, number)
        self._lines += content.count(b"\n")
        self._read += len(content)
        return objects

    def objects(self, check: Check) -> list[dict[str, Any]]:
        """Return the objects of a file in which nothing follows a line that was cut off.

        Args:
            check: called with each object.

        Raises:
            DamagedLineError: at the first line that is damaged or cut off.
        """
        objects = list[dict[str, Any]]()
        for number, line in self.new_objects(check):
            if line is None:
                raise DamagedLineError(f"line {number} is cut off")
            objects.append(line)
        return objects

    def _unread(self, most: int = -1) -> bytes:
        """Return the whole lines that were not read."""
        try:
            with self.file.open("rb") as opened:
                opened.seek(self._read)
                content = b"".join(opened.readlines(most))
        except FileNotFoundError:
            return b""
        return content[: content.rfind(b"\n") + 1]


def _open_unlinked(file: str, flags: int) -> int:
    """Open a file, unless it is a link."""
    return os.open(file, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def line_of(value: Any) -> bytes:
    """Return a JSON value as a line, in ASCII, so that names that are not UTF-8 survive."""
    return f"{json.dumps(value)}\n".encode()


def _objects(lines: list[bytes], first: int) -> Iterator[WholeLine]:
    for number, line in enumerate(lines, first):
        text = line.strip()
        if not text:
            continue
        if text.startswith(b"{") and not text.endswith(b"}"):
            yield WholeLine(number, None)
            continue
        try:
            read = json.loads(text)
        except UnicodeDecodeError:
            raise DamagedLineError(f"line {number} is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            if text.startswith(b"{") and _ends_early(error):
                yield WholeLine(number, None)
                continue
            raise DamagedLineError(f"line {number} is not JSON") from None
        if not isinstance(read, dict):
            raise DamagedLineError(f"line {number} is not a JSON object")
        yield WholeLine(number, read)


def _ends_early(error: Exception) -> bool:
    """Return whether only the rest of a line was missing: it was cut off behind an inner brace."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(error.doc) or error.msg.startswith("Unterminated string")
    )
