"""Say why a task has not begun: other runs have all slots of a limit on one of its tags."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterable, Iterator

from prefect.exceptions import ObjectNotFound

from patchline.flows.prefect_api.prefect_client import asking
from patchline.flows.progress.progress_display import display
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.terminal_words import counted

_FIRST_SECONDS, _SECONDS = 5.0, 60.0
"""Until the first look, and between two of them."""


@contextlib.contextmanager
def watched_slots(tags: Iterable[str]) -> Iterator[threading.Event]:
    """Say within the context, now and then, what the task waits for, until it has begun.

    Args:
        tags: of the task; without one, it waits for nothing.

    Yields:
        an event to set when the task begins.
    """
    begun, tags = threading.Event(), sorted(tags)

    def watch() -> None:
        seconds = _FIRST_SECONDS
        while not begun.wait(seconds):
            seconds = _SECONDS
            for sentence in full_limits(tags):
                display().note(sentence)

    context = contextvars.copy_context()  # of the flow run, whose log has the sentences too
    thread = threading.Thread(
        target=context.run, args=(watch,), name="waiting for slots", daemon=True
    )
    if tags:
        thread.start()
    try:
        yield begun
    finally:
        begun.set()
        if tags:
            thread.join()


def full_limits(tags: Iterable[str]) -> list[str]:
    """Return a sentence for each limit on one of the tags that has no free slot.

    A server that does not answer leaves it to the task to say so.
    """
    sentences = []
    with contextlib.suppress(OrchestrationError), asking() as prefect:
        for tag in tags:
            with contextlib.suppress(ObjectNotFound):
                limit = prefect.read_concurrency_limit_by_tag(tag)
                taken = len(limit.active_slots)
                if taken >= limit.concurrency_limit:
                    others = counted(taken, "other run has", "other runs have")
                    sentences.append(
                        f"waiting: {others} all slots of the limit on the tag {tag} "
                        f"(`prefect concurrency-limit inspect {tag}` shows it)"
                    )
    return sentences
