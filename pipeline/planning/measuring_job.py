"""Input and output of the measuring process; nothing heavy is imported here."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import PlanFacts, Speed
from patchline.pipeline.workers.worker_process import Worker


class MeasuredCandidate(FrozenModel):
    """A model to measure."""

    name: str
    config: RunConfig
    """The settings, resolved against the data."""
    features_only: bool = False
    """Whether to measure passes without gradients instead of training steps."""


class MeasuringJob(FrozenModel):
    """The candidates, in the order in which they are measured, and how long that may take."""

    candidates: tuple[MeasuredCandidate, ...]
    num_classes: int
    images: int
    """Number of images in the training split."""
    validation_images: int = 0
    """Number of images in the validation split."""
    teacher: Path | None = None
    """Folder of the model that predicts the training images, if there is one."""
    workspace: Path | None = None
    """Folder that remembers the precisions that were chosen; a choice between two that are nearly
    as good stays."""
    budget_seconds: float
    """Time for measuring; on a GPU, that of measured steps alone: loading kernels and warming up
    come on top."""
    most_seconds: float | None = None
    """Time after which no more is measured than the speed of one candidate; None for no limit."""


class Measurement(FrozenModel):
    """The measured speeds, and how they were reached; slow candidates may be missing."""

    speeds: tuple[Speed, ...]
    threads: int | None = None
    """Torch threads that computed on the CPU; None on an accelerator."""
    busy_cores: float = 0.0
    """CPU cores that other programs used meanwhile."""
    teacher_per_second: float = 0.0
    """Images that the teacher predicts in a second; 0 without one."""
    accelerator_gib: float | None = None
    """Memory of the first CUDA device."""
    parameters: int = 0
    """Number of parameters of the model whose features were measured; 0 for others."""

    def added_to(self, facts: PlanFacts) -> PlanFacts:
        """Return the facts with what was measured."""
        machine = facts.machine
        if machine.device == "cuda" and self.accelerator_gib:
            machine = machine.model_copy(update={"memory_gib": self.accelerator_gib})
        if self.threads:
            machine = machine.model_copy(update={"threads": self.threads})
        update = {
            "speeds": self.speeds,
            "busy_cores": self.busy_cores,
            "machine": machine,
            "parameters": self.parameters,
            "teacher_per_second": self.teacher_per_second,
        }
        return facts.model_copy(update=update)


MEASURING = Worker("patchline.pipeline.planning", MeasuringJob, Measurement, from_start=True)
