"""The two lines of stages: what a run does, in the order in which it does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests.source_listing import uses_labels
from patchline.pipeline.stages.decode import DECODE
from patchline.pipeline.stages.evaluate import EVALUATE, TEST_ENCODER
from patchline.pipeline.stages.initial_weights import CHOOSE_WEIGHTS, INITIAL_WEIGHTS
from patchline.pipeline.stages.package import PACKAGE, PACKAGE_ENCODER
from patchline.pipeline.stages.plan import PLAN
from patchline.pipeline.stages.promote import CHALLENGE, PROMOTE
from patchline.pipeline.stages.read import READ
from patchline.pipeline.stages.register import REGISTER
from patchline.pipeline.stages.stage import AnyStage, Stage, reads_of
from patchline.pipeline.stages.teacher import FIND_TEACHER, TEACH
from patchline.pipeline.stages.train import TRAIN
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class Pipeline:
    """The stages of a run in their order, checked when they are put together.

    Raises:
        TypeError: if a stage reads what no earlier stage leaves, if two stages have one name,
            or if one has a key and no folder.
    """

    stages: tuple[AnyStage, ...]
    opening: int = field(init=False)
    """The position of the first stage that reads the MLflow run, which is opened before it."""

    def __post_init__(self) -> None:
        """Check what each stage reads, and find where the run is opened."""
        reading = [
            index
            for index, stage in enumerate(self.stages)
            if any(read.kind is TrackedRun for read in reads_of(stage.reads))
        ]
        object.__setattr__(self, "opening", reading[0] if reading else len(self.stages))
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise TypeError(f"Two stages have one name: {', '.join(names)}.")
        for problem in self._problems():
            raise TypeError(problem)

    def _problems(self) -> Iterator[str]:
        left: set[type[Any]] = set()
        for index, stage in enumerate(self.stages):
            if index == self.opening:
                left.add(TrackedRun)
            for read in reads_of(stage.reads):
                if not read.optional and read.kind not in left:
                    yield (
                        f"The stage {stage.name} reads a {read.kind.__name__}, which no stage of "
                        "every run leaves before it."
                    )
            is_remembered = type(stage).key is not Stage.key
            if is_remembered and type(stage).folder is Stage.folder:
                yield f"The stage {stage.name} has a key, but no folder for its files."
            if type(stage).applies is Stage.applies:
                left.add(stage.output)

    @property
    def before_run(self) -> tuple[AnyStage, ...]:
        """The stages before the MLflow run is opened."""
        return self.stages[: self.opening]

    @property
    def in_run(self) -> tuple[AnyStage, ...]:
        """The stages that the MLflow run owns."""
        return self.stages[self.opening :]

    @property
    def code(self) -> str:
        """The digest of all code that its stages may use."""
        return stage_keys.code(*(module for stage in self.stages for module in stage.modules))


CLASSIFIER = Pipeline(
    (
        *(READ, CHOOSE_WEIGHTS, INITIAL_WEIGHTS, FIND_TEACHER, PLAN, DECODE),
        *(TEACH, TRAIN, EVALUATE, PACKAGE, REGISTER, PROMOTE),
    )
)
ENCODER = Pipeline(
    (READ, INITIAL_WEIGHTS, PLAN, DECODE, TRAIN, TEST_ENCODER, PACKAGE_ENCODER, REGISTER, CHALLENGE)
)


def line_of(config: RunConfig) -> Pipeline:
    """Return the line of a run: with labels that of a classifier, without that of an encoder."""
    return CLASSIFIER if uses_labels(config) else ENCODER
