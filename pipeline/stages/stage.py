"""What a stage is: one value that says what it reads, what it leaves, and how it is computed.

A stage file is read from top to bottom: the results of earlier stages that it needs (fields, filled
in by type), its titles, what determines its result, where that is computed, the call into the
library, and what is shown, logged and changed afterwards. Everything that is the same for all
stages is in `engine.py`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import OnEvent
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, StageMemory

if TYPE_CHECKING:
    from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


Value = TypeVar("Value")


@dataclass(frozen=True)
class Reporting:
    """How a run tells its user what it does."""

    stage: Callable[[str], None]
    """Called with the title of a stage."""
    note: Callable[[str], None]
    """Called with a sentence."""
    progress: Callable[[str, int, int], None]
    """Called with what is counted, how many are done, and how many there are."""
    event: OnEvent
    """Called with an event of a worker process."""


@dataclass
class Context:
    """One run on its way through the stages."""

    config: RunConfig
    """The settings so far: initial weights, a plan and the data fill in what was left open."""
    memory: StageMemory
    reporting: Reporting
    workspace: Path
    """The folder `.patchline`; a rehearsal has a `memory` elsewhere."""
    remembers: bool = True
    """Whether the run leaves traces, such as the split of new images; a dry run does not."""
    rehearses: bool = False
    """Whether every stage computes two batches, and nothing is logged."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage, in seconds."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the MLflow run and of the registered version, which say who computes."""
    next_workers: tuple[Worker[Any, Any], ...] = ()
    """Workers of the later stages, which may be started before they are needed."""
    unrecorded: dict[str, Ingredients] = field(default_factory=dict)
    """The keys of the stages whose results are recorded once the MLflow run is open."""
    returned: dict[type[Any], Any] = field(default_factory=dict)
    """The results by type as their stages returned them, for whoever draws a graph of the run."""
    began: float = field(default_factory=time.monotonic)
    """When the command has begun, on the monotonic clock."""
    _results: dict[type[Any], Any] = field(default_factory=dict)

    def branch(self, config: RunConfig, memory: StageMemory) -> Context:
        """Return the context of another run on what the stages have left so far.

        Args:
            config: the other run's settings.
            memory: the other run's memory.
        """
        return dataclasses.replace(
            self,
            config=config,
            memory=memory,
            seconds={},
            unrecorded={},
            returned=dict(self.returned),
            _results=dict(self._results),
        )

    @property
    def elapsed(self) -> float:
        """Seconds since the command has begun."""
        return time.monotonic() - self.began

    @property
    def seconds_before_training(self) -> float:
        """About how many seconds pass before the training; decoding takes as long as reading."""
        return self.elapsed + self.seconds.get("read", 0.0)

    def put(self, value: object) -> None:
        """Leave a value for later stages; it replaces an earlier one of its type."""
        self._results[type(value)] = value

    def drop(self, kind: type[Any]) -> None:
        """Forget the value of a type, if there is one."""
        self._results.pop(kind, None)

    def find(self, kind: type[Value]) -> Value | None:
        """Return the value of a type, or None."""
        return typing.cast("Value | None", self._results.get(kind))

    def get(self, kind: type[Value]) -> Value:
        """Return the value of a type that a stage has left."""
        return typing.cast("Value", self._results[kind])


@dataclass(frozen=True)
class StageInput:
    """A result of an earlier stage that a stage reads."""

    field: str
    kind: type[Any]
    optional: bool


def reads_of(stage: type[Stage[Any]]) -> Iterator[StageInput]:
    """Yield what a stage reads, in the order of its fields.

    Raises:
        TypeError: if a field is not annotated with a class, or a class or None.
    """
    hints: Mapping[str, Any] = typing.get_type_hints(stage)
    for each in dataclasses.fields(stage)[1:]:  # the first is the context
        hint = hints[each.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        required = [kind for kind in kinds if kind is not types.NoneType]
        if len(required) != 1 or not isinstance(required[0], type):
            raise TypeError(f"{stage.__qualname__}.{each.name} is not one class, or that or None")
        yield StageInput(each.name, required[0], optional=len(kinds) > 1)


Result = TypeVar("Result", bound=FrozenModel)


@dataclass(frozen=True)
class Stage(ABC, Generic[Result]):
    """One stage of a run; its fields hold the results of earlier stages, or None where one may be.

    The edge of Prefect's graph leads to the first field of the subclass.
    """

    name: ClassVar[str]
    """The stage's name in `seconds`, in the tags of the run and in the records of results."""
    task: ClassVar[str]
    """The stage's name in the Prefect UI."""
    output: ClassVar[type[FrozenModel]]
    """The class of the result."""
    worker: ClassVar[Worker[Any, Any] | None] = None
    """The worker that computes it; None if the process of the run does."""
    code: ClassVar[tuple[str, ...]] = ()
    """Modules in which the code begins that determines the result; what they import counts."""
    retried: ClassVar[bool] = False
    """Whether Prefect repeats it after a failure of a disk or a server."""
    shared: ClassVar[bool] = False
    """Whether its files stay where they are, for all runs, instead of in the run's folder."""
    at_once: ClassVar[bool] = False
    """Whether its result is recorded before there is an MLflow run, for a dry run too."""
    rehearsal: ClassVar[str | None] = None
    """What a rehearsal says that it does; None if it is not rehearsed."""

    context: Context

    @classmethod
    def of(cls, context: Context) -> Self:
        """Return the stage of a run, with what earlier stages have left."""
        return cls(context, **{read.field: context.find(read.kind) for read in reads_of(cls)})

    @property
    def config(self) -> RunConfig:
        """The settings of the run so far."""
        return self.context.config

    @classmethod
    def summary(cls) -> str:
        """Return what it does, in one sentence: the first line of its file."""
        text = sys.modules[cls.__module__].__doc__ or ""
        return text.strip().partition("\n")[0]

    @classmethod
    def modules(cls) -> tuple[str, ...]:
        """Return the modules in which all of its code begins."""
        return (cls.__module__, *cls.code)

    @staticmethod
    def applies(config: RunConfig) -> bool:  # noqa: ARG004 - unless a stage says otherwise
        """Return whether a run with these settings has this stage."""
        return True

    def is_needed(self) -> bool:
        """Return whether there is anything to do for its inputs; else it is passed over."""
        return True

    @staticmethod
    def check(config: RunConfig, workspace: Path) -> str:  # noqa: ARG004 - nothing to refuse
        """Refuse what can be refused before any data is read.

        Returns:
            A sentence about what was found; empty for none.

        Raises:
            PipelineError: if the stage would fail.
        """
        return ""

    def settings(self) -> RunConfig:
        """Return the settings that the stage, and all later ones, work with."""
        return self.config

    @abstractmethod
    def title(self) -> str:
        """Return what the terminal shows while it computes."""

    def task_run(self) -> str:
        """Return the name of its task run in the Prefect UI."""
        return self.task

    def key(self) -> Ingredients | None:
        """Return everything that determines the result.

        Returns:
            None if the result is not remembered by the engine.
        """
        return None

    def folder(self, result: Result | None) -> Path:
        """Return the folder with the files of the result; every stage with a key has one.

        Args:
            result: the stage's result; None before it is computed.
        """
        raise NotImplementedError

    @abstractmethod
    def compute(self) -> Result:
        """Compute the result, by one call into the library."""

    def rehearse(self) -> Result:
        """Compute the result for two batches."""
        return self.compute()

    def is_whole(self, result: Result) -> bool:
        """Return whether an earlier result is complete; its files are, as they were recorded."""
        return True

    def is_cacheable(self, result: Result) -> bool:
        """Return whether a later run may use the result."""
        return True

    def reuse(self) -> str:
        """Return what is said if the result of an earlier run is used."""
        return "its result is used again"

    def after(self, result: Result) -> None:
        """Show what the user should know of the result, and let the settings follow it."""

    def tags(self, result: Result) -> dict[str, str]:
        """Return tags of the MLflow run."""
        return {}

    def log(self, result: Result, run: TrackedRun) -> None:
        """Log the result in the MLflow run; for early stages, once the run is open."""


StageClass = type[Stage[Any]]
