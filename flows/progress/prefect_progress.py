"""Show the progress of a task in the Prefect UI without making the task wait for the server.

A thread writes the progress artifact, with the newest values only and every two seconds at most. A
slow server delays the artifact, an unreachable one leaves it as it is; the training is not affected
by either. Log lines go through Prefect's own queue.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from typing import NamedTuple
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

logger = logging.getLogger(__name__)

KEY = "progress"
INTERVAL_SECONDS = 2.0
_MOST_FAILURES = 3
_IDLE_SECONDS = 20.0
_SHORT_SECONDS = 1.0


def log(text: str, level: int = logging.INFO) -> None:
    """Write a line to the log of the flow run, if there is one."""
    try:
        get_run_logger().log(level, "%s", text)
    except MissingContextError:
        return


class Progress(NamedTuple):
    """What the artifact says."""

    percent: float
    words: str


class ProgressArtifact:
    """The progress artifact of one task run."""

    def __init__(self, *, interval: float = INTERVAL_SECONDS) -> None:
        self._interval = interval
        self._changed = threading.Condition()
        self._next: Progress | None = None
        self._thread: threading.Thread | None = None
        self._id: UUID | None = None
        self._failures = 0
        self._began = time.monotonic()

    def show(self, percent: float, words: str, *, at_once: bool = True) -> None:
        """Show progress, and return immediately.

        Args:
            percent: how much of the work is done.
            words: text beside the bar.
            at_once: whether to show work that takes less than a second, too.
        """
        with self._changed:
            if self.given_up:
                return
            new = self._thread is None and self._id is None
            if new and not at_once and time.monotonic() - self._began < _SHORT_SECONDS:
                return
            self._next = Progress(min(100.0, percent), words)
            if self._thread is None:
                # Prefect keeps its settings and the current task in context variables.
                context = contextvars.copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._work,), name="progress artifact", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    @property
    def given_up(self) -> bool:
        """Whether the server failed so often that no more updates are sent."""
        return self._failures >= _MOST_FAILURES

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written, for tests; return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # noqa: BLE001 - showing progress must not disturb the work
            logger.debug("progress cannot be shown: %s", error)
            with self._changed:
                self._failures = _MOST_FAILURES
                self._thread = None
                self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None, _IDLE_SECONDS)
                progress, self._next = self._next, None
                if progress is None or self.given_up:
                    self._end()
                    return
            self._write(progress)
            with self._changed:
                if progress.percent >= 100:  # noqa: PLR2004 - percent
                    self._end()
                    return
                self._changed.wait_for(self._is_done, self._interval)

    def _is_done(self) -> bool:
        return self._next is not None and self._next.percent >= 100  # noqa: PLR2004 - percent

    def _end(self) -> None:
        self._thread = None
        self._changed.notify_all()

    def _write(self, progress: Progress) -> None:
        percent = round(progress.percent, 1)
        try:
            if self._id is None:
                self._id = UUID(str(create_progress_artifact(percent, KEY, progress.words)))
            else:
                update_progress_artifact(self._id, percent, progress.words)
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - showing progress must not disturb the work
            logger.debug("progress cannot be shown: %s", error)
            self._failures += 1


_current: ProgressArtifact | None = None
_current_task: UUID | None = None


def artifact() -> ProgressArtifact | None:
    """Return the progress artifact of the current task; None outside of a task."""
    global _current, _current_task  # noqa: PLW0603 - the tasks of a process run one after the other
    context = TaskRunContext.get()
    if context is None:
        return None
    if context.task_run.id != _current_task:
        _current_task = context.task_run.id
        _current = ProgressArtifact()
    return _current
