"""What happens in every stage alike: recall, compute, remember, time, tell.

A result that an earlier run has computed from the same data, settings, code and packages is not
computed again. Who runs the stages decides how a computation is called (`Call`): the training flow
makes each a Prefect task, a dry run calls it directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.stages.stage import Context, Stage, StageClass
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

REUSED_TAG = "patchline.reused"
"""Followed by a stage: the run whose result was used instead of computing it again."""
_EARLIER = "done before the interruption"


@dataclass(frozen=True)
class Computation:
    """The computation of one stage with its inputs, ready to be called."""

    stage: Stage[Any]

    def __call__(self) -> FrozenModel:
        """Return the result: that of an earlier run with the same key, or a new one."""
        stage, context = self.stage, self.stage.context
        key = stage.key()
        if key is None:
            return self._compute()
        target = None if stage.shared else stage.folder(None)
        recalled = context.memory.recall(stage.name, key, stage.output, target)
        if recalled is not None and stage.is_whole(recalled):
            return self._checked(recalled)
        context.memory.forget(stage.name)
        result = self._compute()
        if stage.is_cacheable(result):
            run_is_open = context.find(TrackedRun) is not None
            if run_is_open or stage.at_once:
                context.memory.remember(stage.name, result, stage.folder(result), key)
            if not run_is_open:
                context.unrecorded[stage.name] = key
        return result

    @property
    def reuse(self) -> str:
        """What is said of a result that was not computed again; empty if it was computed."""
        name, memory = self.stage.name, self.stage.context.memory
        if name not in memory.recalled:
            return ""
        words = self.stage.reuse()
        if source := memory.reused.get(name):
            return f"nothing changed since run {source[:8]}: {words}"
        return _EARLIER if memory.run_id else f"nothing changed: {words}"

    def _compute(self) -> FrozenModel:
        stage = self.stage
        return self._checked(stage.rehearse() if stage.context.rehearses else stage.compute())

    def _checked(self, result: Any) -> FrozenModel:
        """Return the result, which leaves a value of the class that the stage has declared."""
        if type(result) is not self.stage.output:
            kind = type(result).__name__
            raise TypeError(f"The stage {self.stage.name} does not leave a {kind}.")
        return result


Call = Callable[[Computation], FrozenModel]
"""Calls a computation; it may do so as a Prefect task."""


def directly(computation: Computation) -> FrozenModel:
    """Call a computation in this process, and say if its result was known."""
    result = computation()
    if computation.reuse:
        computation.stage.context.reporting.note(computation.reuse)
    return result


def check(stages: Iterable[StageClass], config: RunConfig, workspace: Path) -> Iterator[str]:
    """Refuse what can be refused before any data is read; yield sentences about what was found.

    Raises:
        PipelineError: if a stage would fail.
    """
    for stage in stages:
        if stage.applies(config):
            sentence = stage.check(config, workspace)
            if sentence:
                yield sentence


def workers(stages: Iterable[StageClass], config: RunConfig) -> Iterator[Worker[Any, Any]]:
    """Yield the workers of the stages that a run with these settings has."""
    for stage in stages:
        if stage.worker and stage.applies(config):
            yield stage.worker


def prewarm_at_start(stages: Iterable[StageClass], config: RunConfig) -> None:
    """Start the workers that a run with these settings needs first."""
    for worker in workers(stages, config):
        if worker.from_start:
            worker.prepare()


def run_stages(
    stages: Sequence[StageClass],
    context: Context,
    call: Call = directly,
    then: Callable[[FrozenModel], None] = lambda _result: None,
) -> None:
    """Go through stages in their order; each leaves its result in the context.

    Args:
        stages: the stages of a pipeline, in their order.
        context: the run's context, which the stages read and change.
        call: calls their computations.
        then: called with the result of each stage, once it is logged.

    Raises:
        PipelineError: why a stage failed.
    """
    for position, kind in enumerate(stages):
        if not kind.applies(context.config):
            continue
        stage = kind.of(context)
        if not stage.is_needed():
            continue
        context.config = stage.settings()
        context.next_workers = tuple(workers(stages[position + 1 :], context.config))
        with _time_stage(stage.name, context):
            title = stage.rehearsal if context.rehearses else None
            context.reporting.stage(title or stage.title())
            result = call(Computation(stage))
            context.put(result)
            context.returned[stage.output] = result
            stage.after(result)
            if run := _open_run(context):
                stage = kind.of(context)  # with what it has changed
                if tags := stage.tags(result):
                    tracked_run.set_tags(run, tags)
                stage.log(result, run)
            then(result)


def early_tags(stages: Iterable[StageClass], context: Context) -> dict[str, str]:
    """Return the tags of the stages before the MLflow run is opened."""
    tags = dict(context.tags)
    for stage, result in _with_results(stages, context):
        tags |= stage.tags(result)
    return tags


def enter(run: TrackedRun, stages: Iterable[StageClass], context: Context) -> None:
    """Go on in an open MLflow run: record and log what the stages before it have left."""
    memory = context.memory
    memory.enter(run.run_id, run.folder)
    context.put(run)
    for stage, result in _with_results(stages, context):
        if (key := context.unrecorded.pop(stage.name, None)) is not None:
            memory.remember(stage.name, result, stage.folder(result), key)
        stage.log(result, run)
    _tag_reuse(context, run)


def _with_results(
    stages: Iterable[StageClass], context: Context
) -> Iterator[tuple[Stage[Any], FrozenModel]]:
    for kind in stages:
        result = context.find(kind.output)
        if result is not None:
            yield kind.of(context), result


def _open_run(context: Context) -> TrackedRun | None:
    """Return the MLflow run in which results are logged, if there is one."""
    return None if context.rehearses else context.find(TrackedRun)


@contextmanager
def _time_stage(stage: str, context: Context) -> Iterator[None]:
    """Measure the seconds of a stage, and tag the run with results that were reused."""
    began = time.monotonic()
    try:
        yield
    finally:
        context.seconds[stage] = round(time.monotonic() - began, 2)
    if run := _open_run(context):
        _tag_reuse(context, run)


def _tag_reuse(context: Context, run: TrackedRun) -> None:
    tags = {f"{REUSED_TAG}.{stage}": source for stage, source in context.memory.reused.items()}
    if tags:
        tracked_run.set_tags(run, tags)
