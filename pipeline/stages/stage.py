"""What a stage is: one value that says what it reads, what it leaves, and how it is computed.

A stage file is read from top to bottom: the results of earlier stages that it needs (a frozen
dataclass, filled in by type), its titles, what determines its result, where that is computed, the
call into the library, and what is shown, logged and changed afterwards. Everything that is the same
for all stages is in `engine.py`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.worker_start import Worker
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig
    from patchline.pipeline.stages.context import Context
    from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

Inputs = TypeVar("Inputs")
Result = TypeVar("Result", bound=FrozenModel)


class Stage(ABC, Generic[Inputs, Result]):
    """One stage of a run.

    Attributes:
        name: in `seconds`, in the tags of the run and in the records of results.
        task: its name in the Prefect UI.
        reads: a frozen dataclass; each field is filled with the result of its type that an earlier
            stage has left, or None where the type allows it. The edge of Prefect's graph leads to
            the first field.
        output: the class of the result.
        worker: where it computes; None for the process of the run.
        code: modules in which the code begins that determines the result; what they import counts.
        retried: whether Prefect repeats it after a failure of a disk or a server.
        shared: whether its files stay where they are, for all runs, instead of in the run's folder.
        at_once: whether its result is recorded before there is an MLflow run, for a dry run too.
        rehearsal: what a rehearsal says that it does; None if it is not rehearsed.
    """

    name: ClassVar[str]
    task: ClassVar[str]
    reads: type[Inputs]
    output: type[Result]
    worker: ClassVar[Worker | None] = None
    code: ClassVar[tuple[str, ...]] = ()
    retried: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    rehearsal: ClassVar[str | None] = None

    @property
    def summary(self) -> str:
        """What it does, in one sentence: the first line of its file."""
        text = sys.modules[type(self).__module__].__doc__ or ""
        return text.strip().partition("\n")[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which all of its code begins."""
        return (type(self).__module__, *self.code)

    def applies(self, config: RunConfig) -> bool:
        """Return whether a run with these settings has this stage."""
        return True

    def is_needed(self, context: Context, inputs: Inputs) -> bool:
        """Return whether there is anything to do for these inputs; else it is passed over."""
        return True

    def check(self, config: RunConfig, workspace: Path) -> str:
        """Refuse what can be refused before any data is read.

        Returns:
            A sentence about what was found; empty for none.

        Raises:
            PipelineError: if the stage would fail.
        """
        return ""

    def settings(self, config: RunConfig, inputs: Inputs) -> RunConfig:
        """Return the settings that the stage, and all later ones, work with."""
        return config

    @abstractmethod
    def title(self, context: Context, inputs: Inputs) -> str:
        """Return what the terminal shows while it computes."""

    def task_run(self, context: Context, inputs: Inputs) -> str:
        """Return the name of its task run in the Prefect UI."""
        return self.task

    def key(self, context: Context, inputs: Inputs) -> Ingredients | None:
        """Return everything that determines the result.

        Returns:
            None if the result is not remembered by the engine.
        """
        return None

    def folder(self, context: Context, inputs: Inputs, result: Result | None) -> Path:
        """Return the folder with the files of the result; every stage with a key has one.

        Args:
            context: of the run.
            inputs: of the stage.
            result: None before it is computed.
        """
        raise NotImplementedError

    @abstractmethod
    def compute(self, context: Context, inputs: Inputs) -> Result:
        """Compute the result, by one call into the library."""

    def rehearse(self, context: Context, inputs: Inputs) -> Result:
        """Compute the result for two batches."""
        return self.compute(context, inputs)

    def is_whole(self, result: Result) -> bool:
        """Return whether an earlier result is complete; its files are, as they were recorded."""
        return True

    def is_cacheable(self, result: Result) -> bool:
        """Return whether a later run may use the result."""
        return True

    def reuse(self, config: RunConfig) -> str:
        """Return what is said if the result of an earlier run is used."""
        return "its result is used again"

    def after(self, context: Context, inputs: Inputs, result: Result) -> None:
        """Show what the user should know of the result, and let the settings follow it."""

    def tags(self, context: Context, inputs: Inputs, result: Result) -> dict[str, str]:
        """Return tags of the MLflow run."""
        return {}

    def log(self, context: Context, inputs: Inputs, result: Result, run: TrackedRun) -> None:
        """Log the result in the MLflow run; for early stages, once the run is open."""


AnyStage = Stage[Any, Any]
