"""The length of a training run: its steps and its validations, by epochs, a limit or a record.

The time limit, `training.time_limit`, counts from the first step and includes the validations. It
is kept by two classes: `step_plan.TimePlanner` moves the last step by the measured speed, and
`validation_plan.Timed` chooses when to validate and on how many images. Folds and a refit share it
(`parts.run_parts`); the features of a frozen model are not in it (`parts.probe` says so). A preset
sets it to the minutes of its plan (`pipeline/planning/plan.py`). A run records the steps that it
planned in its resolved config, which then replays by steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.config import RunConfig
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.length.step_plan import StepPlan, TimePlanner
from patchline.pipeline.training.length.validation_plan import (
    EachEpoch,
    Recorded,
    Timed,
    ValidationPlan,
)
from patchline.pipeline.training.part import TrainingPart


@dataclass
class RunLength:
    """When a training run validates, and when it ends."""

    steps_per_epoch: int
    """Of the training split."""
    validations: ValidationPlan
    """A refit has no validation, but reports each epoch."""
    plan: StepPlan
    """Of the steps, which may follow the plan of another training."""
    planner: TimePlanner | None = None
    """Changes the plan, with a time limit."""

    @classmethod
    def of(
        cls, config: RunConfig, part: TrainingPart, steps_per_epoch: int, images: int
    ) -> RunLength:
        """Return the length of a part of a run; `images` is the size of the validation split."""
        settings, record = config.training, config.record
        limit = duration_seconds(settings.time_limit) if settings.time_limit else 0.0
        timed = Timed(limit, steps_per_epoch, images, settings.batch_size)
        validations: ValidationPlan = timed
        if record.validation_plan is not None and not part.refit:
            recorded = part.validations(record.validation_plan, steps_per_epoch)
            validations = Recorded(recorded, images)
        elif not limit or record.step_plan is not None:
            validations = EachEpoch(steps_per_epoch, images)
        knots = record.step_plan
        if limit and knots is None:
            plan = TimePlanner.opening_plan()
            most_steps = settings.max_epochs * steps_per_epoch if settings.max_epochs else None
            # The cost of recorded validations is only estimated.
            return cls(
                steps_per_epoch, validations, plan, TimePlanner(plan, limit, timed, most_steps)
            )
        if knots is None:
            knots = tuple(StepPlan.of_steps(settings.epochs * steps_per_epoch).knots)
        return cls(steps_per_epoch, validations, StepPlan(part.plan(knots, steps_per_epoch)))

    @property
    def timed(self) -> Timed | None:
        """The validations, if they have to fit into a time limit."""
        return self.validations if isinstance(self.validations, Timed) else None
