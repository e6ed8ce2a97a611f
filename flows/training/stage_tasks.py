"""Each stage of a run as a Prefect task.

A stage whose result was not computed again ends in the state Cached, which names the run that has
computed it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed
from prefect.utilities.annotations import opaque, quote

from patchline.flows.prefect_api.failures import RETRYING
from patchline.flows.prefect_api.prefect_client import open_client
from patchline.flows.progress.progress_display import display
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.stages.engine import Computation
from patchline.pipeline.stages.stage import Stage, reads_of
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.training.parts.run_parts import STAGE as TRAINING
from patchline.pipeline.waiting import Periodic

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import ConcurrencyLimit, State


_FIRST_SECONDS, _SECONDS = 5.0, 60.0
"""Until the first look, and between two of them."""


def watch_slots(tags: Iterable[str]) -> Periodic:
    """Say within the context, now and then, what the task waits for, until it has begun.

    Args:
        tags: the task's tags; without one, it waits for nothing.

    Returns:
        A context with an event to set when the task begins.
    """
    tags = sorted(tags)
    context = contextvars.copy_context()  # of the flow run, whose log has the sentences too

    def watch() -> None:
        for sentence in tags and full_limits(tags):
            display().note(sentence)

    return Periodic(lambda: context.run(watch), _SECONDS, _FIRST_SECONDS)


def full_limits(tags: Iterable[str]) -> list[str]:
    """Return a sentence for each limit on one of the tags that has no free slot.

    A server that does not answer leaves it to the task to say so.
    """
    sentences = []
    with contextlib.suppress(OrchestrationError), open_client() as prefect:
        for limit in _limits(prefect, tags):
            taken = len(limit.active_slots)
            if taken >= limit.concurrency_limit:
                others = counted(taken, "other run has", "other runs have")
                sentences.append(
                    f"waiting: {others} all slots of the limit on the tag {limit.tag} "
                    f"(`prefect concurrency-limit inspect {limit.tag}` shows it)"
                )
    return sentences


def _limits(prefect: SyncPrefectClient, tags: Iterable[str]) -> Iterator[ConcurrencyLimit]:
    for tag in tags:
        with contextlib.suppress(ObjectNotFound):
            yield prefect.read_concurrency_limit_by_tag(tag)


TRAINING_TAG, GPU_TAG = "training", "gpu"
"""Tags of tasks where they are limited: `prefect concurrency-limit create gpu 2` lets two of them
run at a time."""


def as_task(computation: Computation) -> FrozenModel:
    """Compute the result of a stage in a task run of the current flow run.

    Prefect's graph shows one edge, from the stage that left the first of the inputs; with an edge
    for every input it would be unreadable.
    """
    stage = computation.stage
    retrying: dict[str, Any] = {**RETRYING} if stage.retried else {}
    tags = _tags(computation)
    run: Any = task(
        name=stage.task,
        task_run_name=stage.task_run,
        description=stage.summary(),
        cache_policy=NO_CACHE,
        tags=tags,
        **retrying,
    )
    with watch_slots(tags) as begun:
        result: FrozenModel | State[FrozenModel] = run(_function_of(stage, begun))(
            quote(computation), opaque(_first_input(computation))
        )
    return result if isinstance(result, FrozenModel) else result.result()


def _tags(computation: Computation) -> set[str]:
    """Return the tags of the task, if it trains."""
    if computation.stage.name != TRAINING:
        return set()
    return training_tags(computation.stage.config)


def training_tags(config: RunConfig) -> set[str]:
    """Return the limited tags of a task that trains, or all if the server does not answer.

    For each tag of a task, limited or not, Prefect asks for a slot, which writes to the database.
    SQLite refuses that if another write comes between, and Prefect repeats it after two seconds.
    """
    device = config.training.device
    needs_gpu = device == "cuda" or (device == "auto" and any(Path("/dev").glob("nvidia[0-9]*")))
    tags = {TRAINING_TAG, *({GPU_TAG} if needs_gpu else set())}
    with contextlib.suppress(OrchestrationError), open_client() as prefect:
        return {limit.tag for limit in _limits(prefect, tags)}
    return tags


def _function_of(
    stage: Stage[Any], begun: Event
) -> Callable[[Computation, Any], FrozenModel | State[FrozenModel]]:
    """Return a function of its own for a stage: Prefect tells tasks apart by its name."""

    def compute(computation: Computation, earlier: Any) -> FrozenModel | State[FrozenModel]:  # noqa: ARG001 - an edge
        begun.set()
        result = computation()
        if not computation.reuse:
            return result
        display().note(computation.reuse)
        return Completed(name="Cached", message=computation.reuse, data=result)

    compute.__name__ = compute.__qualname__ = stage.name
    return compute


def _first_input(computation: Computation) -> Any:
    """Return the result of an earlier stage, as its task returned it; None for the first stage."""
    for read in reads_of(type(computation.stage)):
        return computation.stage.context.returned.get(read.kind)
    return None
