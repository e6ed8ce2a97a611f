"""The two lines of stages: what a run does, in the order in which it does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests.source_listing import uses_labels
from patchline.pipeline.stages.decode import Decode
from patchline.pipeline.stages.evaluate import EncoderTest, Evaluate
from patchline.pipeline.stages.initial_weights import ChooseWeights, FindWeights
from patchline.pipeline.stages.package import PackageEncoder, PackageModel
from patchline.pipeline.stages.plan import PlanTraining
from patchline.pipeline.stages.promote import Challenge, Promote
from patchline.pipeline.stages.read import Read
from patchline.pipeline.stages.register import Register
from patchline.pipeline.stages.stage import Stage, StageClass, reads_of
from patchline.pipeline.stages.teacher import FindTeacher, Teach
from patchline.pipeline.stages.train import Train
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class Pipeline:
    """The stages of a run in their order, checked when they are put together.

    Raises:
        TypeError: if a stage reads what no earlier stage leaves, if two stages have one name,
            or if one has a key and no folder.
    """

    stages: tuple[StageClass, ...]
    opening: int = field(init=False)
    """The position of the first stage that reads the MLflow run, which is opened before it."""

    def __post_init__(self) -> None:
        """Check what each stage reads, and find where the run is opened."""
        reading = [
            index
            for index, stage in enumerate(self.stages)
            if any(read.kind is TrackedRun for read in reads_of(stage))
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
            for read in reads_of(stage):
                if not read.optional and read.kind not in left:
                    yield (
                        f"The stage {stage.name} reads a {read.kind.__name__}, which no stage of "
                        "every run leaves before it."
                    )
            is_remembered = stage.key is not Stage.key
            if is_remembered and stage.folder is Stage.folder:
                yield f"The stage {stage.name} has a key, but no folder for its files."
            if stage.applies is Stage.applies:
                left.add(stage.output)

    @property
    def before_run(self) -> tuple[StageClass, ...]:
        """The stages before the MLflow run is opened."""
        return self.stages[: self.opening]

    @property
    def in_run(self) -> tuple[StageClass, ...]:
        """The stages that the MLflow run owns."""
        return self.stages[self.opening :]

    @property
    def code(self) -> str:
        """The digest of all code that its stages may use."""
        return stage_keys.code(*(module for stage in self.stages for module in stage.modules()))


CLASSIFIER = Pipeline(
    (
        *(Read, ChooseWeights, FindWeights, FindTeacher, PlanTraining, Decode),
        *(Teach, Train, Evaluate, PackageModel, Register, Promote),
    )
)
ENCODER = Pipeline(
    (
        *(Read, FindWeights, PlanTraining, Decode, Train),
        *(EncoderTest, PackageEncoder, Register, Challenge),
    )
)


def line_of(config: RunConfig) -> Pipeline:
    """Return the line of a run: with labels that of a classifier, without that of an encoder."""
    return CLASSIFIER if uses_labels(config) else ENCODER
