"""Child processes that answer questions about images, so that every core decodes.

A child is a module run with `python -m`. It reads a JSON line with its job, then one for each
question, and answers each with a line; `answer_parent` is its loop. It ends when its input does,
also if the parent was killed.
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
from typing import Any, Self

logger = logging.getLogger(__name__)

FEWEST_FILES = 4000
"""For fewer files, threads are done before child processes would have started."""
_MOST_PROCESSES = 16
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


class ChildProcesses:
    """One child process for each processor.

    Args:
        module: what they run.
        job: the first line of their input.
    """

    def __init__(self, module: str, job: object) -> None:
        self._children = [_Child(module, job) for _ in range(min(processors(), _MOST_PROCESSES))]
        self._free: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for child in self._children:
                self._free.put(stack.enter_context(child))
            self._threads = stack.enter_context(ThreadPoolExecutor(len(self._children)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # after an error, some are waiting
        self._stack.close()

    def answers(self, questions: Sequence[Any], otherwise: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the answer to each question, in their order.

        Args:
            questions: what JSON can hold.
            otherwise: answers a question whose child has ended.
        """

        def answer(question: Any) -> Any:
            child = self._free.get()
            try:
                line = child.ask(question)
            finally:
                self._free.put(child)
            return json.loads(line) if line else otherwise(question)

        yield from self._threads.map(answer, questions)


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
        prepared: takes the job, and returns what answers a question.
    """
    answer = prepared(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201 - to the parent
