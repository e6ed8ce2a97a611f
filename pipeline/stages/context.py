"""What the stages of a run have left so far, by type, and what all of them may use."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from patchline.pipeline.config import RunConfig
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_start import Worker
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, StageMemory

Inputs = TypeVar("Inputs")
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
    event: Callable[[Event], None]
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
    """Duration of each stage."""
    tags: dict[str, str] = field(default_factory=dict)
    """Of the MLflow run and of the registered version: who computes."""
    next_workers: tuple[Worker, ...] = ()
    """Of the later stages, which may be started before they are needed."""
    unrecorded: dict[str, Ingredients] = field(default_factory=dict)
    """The keys of the stages whose results are recorded once the MLflow run is open."""
    returned: dict[type[Any], Any] = field(default_factory=dict)
    """The results by type as their stages returned them, for whoever draws a graph of the run."""
    _results: dict[type[Any], Any] = field(default_factory=dict)

    def branch(self, config: RunConfig, memory: StageMemory) -> Context:
        """Return the context of another run on what the stages have left so far.

        Args:
            config: of that run.
            memory: of that run.
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

    def inputs(self, reads: type[Inputs]) -> Inputs:
        """Return the inputs of a stage, filled with what earlier stages have left."""
        values = {read.field: self._results.get(read.kind) for read in reads_of(reads)}
        return reads(**values)


@dataclass(frozen=True)
class StageInput:
    """A result of an earlier stage that a stage reads."""

    field: str
    kind: type[Any]
    optional: bool


def reads_of(inputs: type[Any]) -> Iterator[StageInput]:
    """Yield what a class of inputs reads, in the order of its fields.

    Raises:
        TypeError: if a field is not annotated with a class, or a class or None.
    """
    hints: Mapping[str, Any] = typing.get_type_hints(inputs)
    for each in dataclasses.fields(inputs):
        hint = hints[each.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        required = [kind for kind in kinds if kind is not types.NoneType]
        if len(required) != 1 or not isinstance(required[0], type):
            raise TypeError(f"{inputs.__qualname__}.{each.name} is not one class, or that or None")
        yield StageInput(each.name, required[0], optional=len(kinds) > 1)
