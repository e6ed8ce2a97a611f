"""A worker that repeats what it is told: `python -P -m tests.pipeline.workers.echo_worker DIR`."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from patchline.pipeline.errors import RunError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import Worker

_COLLECTED = gc.isenabled()


class Question(FrozenModel):
    """Its job."""

    words: str


class Answer(FrozenModel):
    """Its result."""

    words: str
    process: int
    collected_at_import: bool
    """Whether garbage was collected while the modules were imported."""
    collects: bool
    """Whether it is collected while the work is done."""
    working_directory: Path


ECHO = Worker("tests.pipeline.workers.echo_worker", Question, Answer)


def _echo(job: Question, events: EventWriter) -> Answer:
    if not job.words:
        raise RunError("I say nothing.")
    if job.words == "unforeseen":
        raise ZeroDivisionError("nobody meant this")
    print(f"said {job.words}")  # noqa: T201 - for its log
    events.write("warning", message=job.words)
    return Answer(
        words=job.words,
        process=os.getpid(),
        collected_at_import=_COLLECTED,
        collects=gc.isenabled(),
        working_directory=Path.cwd(),
    )


def _introduce() -> str:
    print("some library greets its user")  # noqa: T201 - as libraries do
    return '{"echo": true}'


if __name__ == "__main__":
    ECHO.main(_echo, _introduce)
