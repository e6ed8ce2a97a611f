"""Child processes that answer questions about images, so that every core decodes.

A child is a module run with `python -m`. It reads a JSON line with its job, then one for each
question, which is a batch of items, and answers each with a line; `answer_parent` is its loop. It
ends when its input does, also if the parent was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

logger = logging.getLogger(__name__)

FEWEST_FILES = 4000
"""For fewer files, threads are done before child processes would have started."""
_MOST_PROCESSES = 16
_BATCH = 50
"""Items in a question."""
_MOST_THREADS = 8

CORES_VARIABLE = "PATCHLINE_CORES"
"""Environment variable: how many cores a launcher has reserved for this process."""


def processors() -> int:
    """Return how many processors this process may use; a launcher may have reserved fewer."""
    there = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        there = len(os.sched_getaffinity(0))
    return max(1, min(there, int(os.environ.get(CORES_VARIABLE) or there)))


def threads() -> ThreadPoolExecutor:
    """Return threads that read and decode: one for each processor, and one that waits for the disk.

    With two for each they mostly wait for each other.
    """
    return ThreadPoolExecutor(max_workers=min(_MOST_THREADS, processors() + 1))


def pay_off(files: int, fewest: int = FEWEST_FILES) -> bool:
    """Return whether so many files are read faster by child processes than by threads."""
    return processors() > 1 and files >= fewest


@contextmanager
def reading_map(
    module: str, job: object, here: Callable[[Any], Any], *, divided: bool
) -> Iterator[Callable[[Sequence[Any]], Iterator[Any]]]:
    """Return what maps a function over items, in their order, by all cores.

    Args:
        module: what child processes run, one for each processor.
        job: the first line of their input.
        here: does in this process what no child has done.
        divided: whether child processes do it, of items that JSON can hold; otherwise threads.
    """
    if not divided:
        with threads() as pool:
            yield partial(pool.map, here)
        return
    free: queue.SimpleQueue[_Child] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for _ in range(min(processors(), _MOST_PROCESSES)):
            free.put(stack.enter_context(_Child(module, job)))
        pool = stack.enter_context(ThreadPoolExecutor(free.qsize()))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # after an error, some wait

        def answers(batch: Sequence[Any]) -> list[Any]:
            child = free.get()
            try:
                line = child.ask(batch)
            finally:
                free.put(child)
            return json.loads(line) if line else [None] * len(batch)

        def results(items: Sequence[Any]) -> Iterator[Any]:
            batches = [items[at : at + _BATCH] for at in range(0, len(items), _BATCH)]
            for batch, own in zip(batches, pool.map(answers, batches), strict=True):
                for item, result in zip(batch, own, strict=True):
                    yield here(item) if result is None else result

        yield results


class _Child:
    def __init__(self, module: str, job: object) -> None:
        self._module, self._job = module, job
        self._has_ended = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._send(self._job)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError), self._process:
            self._process.kill()

    def ask(self, question: object) -> str:
        """Return the answer's line; an empty text if the child has ended."""
        if self._has_ended or not self._process.stdout:
            return ""
        line = self._process.stdout.readline() if self._send(question) else ""
        if line.endswith("\n"):
            return line
        self._has_ended = True
        logger.warning("a process that read images has ended; its images are read without it")
        return ""

    def _send(self, content: object) -> bool:
        try:
            print(json.dumps(content), file=self._process.stdin, flush=True)
        except OSError:
            return False
        return True


def answer_parent(prepared: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answer the parent's questions until there are no more.

    Args:
        prepared: takes the job, and returns the function that does an item; it returns None for one
            that is left to the parent.
    """
    answer = prepared(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        answers = list(map(answer, json.loads(line)))
        print(json.dumps(answers), flush=True)  # noqa: T201 - to the parent
