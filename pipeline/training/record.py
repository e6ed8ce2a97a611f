"""What a run decided or met: the section `record:` of its `config.yaml`.

A repeat and a resume use it for the same weights; no flag, form or search sets it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from patchline.pipeline.frozen_model import FrozenModel

StepPlanKnots = tuple[tuple[int, float, int], ...]
ValidationPlanSteps = tuple[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], ...]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

_NO_LONGER_READ = {"thread_changes", "precision_reason"}
"""What earlier versions wrote, and nothing reads."""


def _check_plan(knots: StepPlanKnots) -> StepPlanKnots:
    """Return the knots if they are a valid plan.

    Raises:
        ValueError: if there is none, they do not begin at step 0, steps or progress decrease, or an
            end is before a step that has to be reached.
    """
    if not knots or knots[0][0] != 0 or knots[-1][2] < 1:
        raise ValueError("must have a knot (step, progress, end) at step 0, and end at 1 or later")
    last_step, _, last_end = knots[-1]
    for (step, _, end), (following, _, _) in itertools.pairwise(knots):
        if not step < following <= end:
            raise ValueError(
                f"has a knot at step {following} after one from step {step} to {end}: steps must "
                "rise, and not pass the end of the knot before"
            )
    if last_end < last_step:
        raise ValueError(f"ends at {last_end}, before its last knot at step {last_step}")
    progress = [knot[1] for knot in knots]
    if progress != sorted(progress) or not (0 <= progress[0] < 1 and progress[-1] <= 1):
        raise ValueError("must have a progress that starts below 1 and rises from 0 to 1")
    return knots


def _if_measured(precision: Any) -> Any:
    """Return None for what earlier versions wrote where nothing was measured."""
    return None if precision in ("", "auto") else precision


class TrainingRecord(FrozenModel):
    """How training went, where its settings do not say it."""

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if key not in _NO_LONGER_READ}

    step_plan: Annotated[StepPlanKnots, AfterValidator(_check_plan)] | None = None
    """Steps as (step, progress, end) knots: planned for the time of a preset, or done within a time
    limit."""

    validation_plan: ValidationPlanSteps | None = None
    """Each validation as (step, images), planned or done with step_plan."""

    halvings: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Steps from which micro-batches were half as large, because memory was short."""

    rate_cuts: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Steps from which the learning rate was halved, because training diverged later."""

    feature_precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, BeforeValidator(_if_measured)
    ] = None
    """Precision of the features that a head was fitted on before all weights were trained; null
    without such a head."""


class RunRecord(TrainingRecord):
    """What a run decided or met; `--config` and `--resume` use it."""

    extends: str | None = None
    """MLflow id of the finished run that `patchline run --extend` trained further."""

    init_sha256: Sha256 | None = None
    """SHA-256 of the initial weights."""

    teacher_sha256: Sha256 | None = None
    """SHA-256 of the teacher's weights."""

    average_last: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Number of last validations whose weights the plan averages instead of keeping the best ones.
    """

    accepted_error: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Error of a fitted head, as the validation images tell it, up to which the plan trains nothing
    more, because that would not be worth its time."""

    shuffle_window: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the training images that the plan shuffles together. With less than 1, an epoch
    reads the stored images in windows, each a sample of all and the next one ahead of its use, for
    images that do not fit the memory."""

    set_by_user: tuple[str, ...] | None = None
    """Dotted keys of the settings that the user has given, such as model.activation, if the others
    follow initial weights; a value that differs from the default counts as given even if it is not
    listed. Null once they are resolved, and without initial weights."""

    def of(self, training: TrainingRecord) -> Self:
        """Return the record with how training went."""
        return self.model_copy(
            update={name: getattr(training, name) for name in TrainingRecord.model_fields}
        )
