"""The length of a training run: its steps and its validations, by epochs, a limit or a record.

The time limit, `training.time_limit`, counts from the first step and includes the validations. It
is kept by two classes: `step_plan.TimePlanner` moves the last step by the measured speed, and
`validation_plan.Timed` chooses when to validate and on how many images. Folds and a refit share it
(`parts.run_parts`); the features of a frozen model are not in it (`parts.probe` says so). A preset
sets it to the minutes of its plan (`pipeline/planning/plan.py`). A run records the steps that it
planned in its resolved config, which then replays by steps.
"""

from __future__ import annotations

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


def planned_validations(
    config: RunConfig, part: TrainingPart, steps_per_epoch: int, images: int
) -> ValidationPlan:
    """Return when to validate.

    Args:
        config: decides the length.
        part: a refit has no validation, but reports each epoch.
        steps_per_epoch: of the training split.
        images: size of the validation split.
    """
    settings, record = config.training, config.record
    if record.validation_plan is not None and not part.refit:
        return Recorded(part.validations(record.validation_plan, steps_per_epoch), images)
    if settings.time_limit is None or record.step_plan is not None:
        return EachEpoch(steps_per_epoch, images)
    limit = duration_seconds(settings.time_limit)
    return Timed(limit, steps_per_epoch, images, settings.batch_size)


def planned_steps(
    config: RunConfig,
    part: TrainingPart,
    steps_per_epoch: int,
    images: int,
    validations: ValidationPlan,
) -> tuple[TimePlanner | None, StepPlan]:
    """Return the plan of the steps, and with a time limit what changes it.

    Args:
        config: decides the length.
        part: may follow the plan of another training.
        steps_per_epoch: of the training split.
        images: size of the validation split.
        validations: share the time limit with the steps.
    """
    settings, record = config.training, config.record
    if record.step_plan is not None:
        return None, StepPlan(part.plan(record.step_plan, steps_per_epoch))
    if settings.time_limit is None:
        knots = StepPlan.of_steps(settings.epochs * steps_per_epoch).knots
        return None, StepPlan(part.plan(knots, steps_per_epoch))
    limit, plan = duration_seconds(settings.time_limit), TimePlanner.opening_plan()
    if not isinstance(validations, Timed):  # a recorded one; its cost is only estimated
        validations = Timed(limit, steps_per_epoch, images, settings.batch_size)
    most_steps = settings.max_epochs * steps_per_epoch if settings.max_epochs else None
    return TimePlanner(plan, limit, validations, most_steps), plan
