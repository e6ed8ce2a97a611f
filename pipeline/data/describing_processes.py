"""Describe many files in child processes, so that every core decodes.

A child is `python -m` this module. It reads a JSON line with its root, then one for each batch of
files, and answers each with a line of rows. It leaves large images to the parent, whose threads
share a budget of memory, and ends when its input does, also if the parent was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, cast

from pipeline.data.describing import OnImage, Row, describe, describe_small
from pipeline.plugin_api import ListedImage

logger = logging.getLogger(__name__)

FEWEST_FILES = 4000
"""Fewer files are described by threads, before child processes would have started."""
_BATCH = 100
_MOST_PROCESSES = 16
Batch = Sequence[tuple[ListedImage, bool]]
"""Files, and whether each is wanted."""


def rows_of(
    root: Path, files: Batch, on_image: OnImage | None = None, fewest: int = FEWEST_FILES
) -> Iterator[Row]:
    """Yield the row of each file, in their order.

    Args:
        root: the folder or archive that the paths are relative to.
        files: what to describe.
        on_image: called for each decoded image, in the thread of this process that decoded it.
        fewest: child processes are used for so many files or more.
    """
    processes = min(_processors(), _MOST_PROCESSES)
    if on_image is not None or processes == 1 or len(files) < fewest:
        with ThreadPoolExecutor(max_workers=min(8, 2 * processes)) as pool:
            yield from pool.map(
                lambda each: describe(root, each[0], on_image, wanted=each[1]), files
            )
        return
    with contextlib.ExitStack() as stack:
        children: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for _ in range(processes):
            children.put(stack.enter_context(_Child(root)))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=processes))

        def answered(batch: Batch) -> list[Row]:
            child = children.get()
            try:
                found = child.rows(batch)
            finally:
                children.put(child)
            return [
                row or describe(root, listed, wanted=wanted)
                for row, (listed, wanted) in zip(found, batch, strict=True)
            ]

        batches = [files[first : first + _BATCH] for first in range(0, len(files), _BATCH)]
        for rows in pool.map(answered, batches):
            yield from rows


class _Child:
    """A child process; once it has ended, every row is None."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._send(os.fspath(self._root))
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def rows(self, batch: Batch) -> Sequence[Row | None]:
        """Return the rows of a batch; None for each that this process has to describe."""
        files = [(each.path, each.label, each.split, each.group, wanted) for each, wanted in batch]
        if self._send(files) and (line := self._line()):
            return cast("list[Row | None]", json.loads(line))
        return [None] * len(batch)

    def _send(self, content: object) -> bool:
        try:
            print(json.dumps(content), file=self._process.stdin, flush=True)
        except OSError:
            return False
        return True

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.endswith("\n"):
            logger.warning("a process that read images ended; this one reads them instead")
            return ""
        return line


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main() -> None:
    """Answer the parent's batches."""
    root = Path(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        files: list[Any] = json.loads(line)
        rows = [
            describe_small(root, ListedImage(path, label, split, group), wanted=wanted)
            for path, label, split, group, wanted in files
        ]
        print(json.dumps(rows), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
