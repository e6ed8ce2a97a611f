"""Describe many files: by threads, or from some thousands on by child processes.

The children leave large images to this process, whose threads share a budget of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.data.child_processes import (
    FEWEST_FILES,
    ChildProcesses,
    answer_parent,
    pay_off,
    processors,
)
from pipeline.data.describing import OnImage, Row, describe, describe_small
from pipeline.plugin_api import ListedImage

_BATCH = 100
Files = Sequence[tuple[ListedImage, bool]]
"""Files, and whether each is wanted."""


def rows_of(
    root: Path, files: Files, on_image: OnImage | None = None, fewest: int = FEWEST_FILES
) -> Iterator[Row]:
    """Yield the row of each file, in their order.

    Args:
        root: the folder or archive that the paths are relative to.
        files: what to describe.
        on_image: called for each decoded image, in the thread of this process that decoded it.
        fewest: child processes are used for so many files or more.
    """

    def row_of(file: tuple[ListedImage, bool]) -> Row:
        return describe(root, file[0], on_image, wanted=file[1])

    if on_image is not None or not pay_off(len(files), fewest):
        with ThreadPoolExecutor(max_workers=min(8, 2 * processors())) as pool:
            yield from pool.map(row_of, files)
        return
    starts = range(0, len(files), _BATCH)
    questions = [[(*file, wanted) for file, wanted in files[at : at + _BATCH]] for at in starts]
    with ChildProcesses(__name__, os.fspath(root)) as children:
        answers = children.answers(questions, lambda question: [None] * len(question))
        for start, rows in zip(starts, answers, strict=True):
            for place, row in enumerate(rows, start):
                yield row or row_of(files[place])


def _described(root: Path, question: list[Any]) -> list[Row | None]:
    return [
        describe_small(root, ListedImage(*listed), wanted=wanted) for *listed, wanted in question
    ]


def _prepared(job: str) -> Callable[[Any], Any]:
    return partial(_described, Path(job))


if __name__ == "__main__":
    answer_parent(_prepared)
