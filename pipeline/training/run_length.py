"""The length of a training run, and when it validates, by epochs, a limit or a record.

Without a time limit, the whole validation split is validated after each epoch. With one, all
validations together take at most a tenth of it: those during training use a fixed part of the
split, as large as the measured speed allows; the last one uses the whole split if it fits. What
the clock decided is recorded as (step, images), so that a replay validates the same.

The time limit of a fit, its part of `training.time_limit`, counts from the first step and
includes the validations. It is kept by two classes: `TimePlanner` moves the last step by the
measured speed, and `Timed` chooses when to validate and on how many images. Folds and a refit share
it (`parts.run_parts`), and the features of a frozen model are taken off before. What the training
gets of the run's time is decided when it starts (`pipeline/planning/time_shares.py`). A run records
the steps that it planned in its resolved config, which then replays by steps.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from patchline.pipeline.config import RunConfig
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.job import TrainingPart
from patchline.pipeline.training.step_plan import UNKNOWN_END, StepPlan
from patchline.pipeline.training.train_result import EpochRecord

_SHARE = 0.1
"""Largest share of the time limit for all validations."""
_INTERVALS = 5
"""There is a validation after this fraction (1/5) of the limit, if no epoch ends earlier."""
_FIRST = 50
"""The first validation is not before this fraction (1/50) of the limit."""
_FEWEST_IMAGES = 64
"""Minimum of a part of the split; fewer say little."""
_MANY = 10**9
_TRAINING_TO_VALIDATION = 3
"""Estimated cost of a training image in validation images, before it is measured."""


class EachEpoch:
    """The whole split after each epoch."""

    def __init__(self, steps_per_epoch: int, images: int) -> None:
        self._steps_per_epoch, self._images = steps_per_epoch, images

    def is_due(self, step: int, elapsed_seconds: float) -> bool:  # noqa: ARG002 - no clock
        """Return whether to validate after the step: whether an epoch ends with it."""
        return step % self._steps_per_epoch == 0

    def images(self, step: int, *, last: bool) -> int:  # noqa: ARG002 - always the whole split
        """Return the number of images of the validation after the step: the whole split."""
        return self._images

    def compared(self) -> int:
        """Return the number of images that are part of every validation."""
        return self._images


class Recorded:
    """The validations of an earlier run."""

    def __init__(self, steps: Sequence[tuple[int, int]], images: int) -> None:
        self._images_at = dict(steps)
        self._images = images

    def is_due(self, step: int, elapsed_seconds: float) -> bool:  # noqa: ARG002 - no clock
        """Return whether the earlier run validated after the step."""
        return step in self._images_at

    def images(self, step: int, *, last: bool) -> int:  # noqa: ARG002 - as recorded
        """Return the recorded number of images."""
        return min(self._images_at.get(step, self._images), self._images)

    def compared(self) -> int:
        """Return the smallest recorded number of images."""
        return min([self._images, *self._images_at.values()])


class Timed:
    """Validations that fit into a time limit.

    Args:
        limit_seconds: time limit of the training in seconds, validation included.
        steps_per_epoch: steps in an epoch; there is a validation after an epoch if the time allows.
        images: size of the validation split.
        batch_size: number of images in a step.
    """

    def __init__(
        self, limit_seconds: float, steps_per_epoch: int, images: int, batch_size: int
    ) -> None:
        self._limit, self._steps_per_epoch = limit_seconds, steps_per_epoch
        self._whole, self._batch_size = images, batch_size
        self._part: int | None = None
        self._seconds_per_image: float | None = None
        self.preparation_seconds = 0.0
        """Time before each validation, whatever its number of images: measuring batch-norm
        statistics."""
        self._spent = 0.0
        self._validated_at = 0.0

    def restore(
        self,
        history: Sequence[EpochRecord],
        spent_seconds: float,
        elapsed_seconds: float,
        preparation_seconds: float = 0.0,
    ) -> None:
        """Take up what a training run that is resumed, or restarts, has already validated.

        Args:
            history: the run's validations so far.
            spent_seconds: the time that these validations took, without their preparation.
            elapsed_seconds: the time that the run has taken so far.
            preparation_seconds: the time that the preparation of all these validations took.
        """
        images = sum(record.validation_images for record in history)
        self._part = min(record.validation_images for record in history) if history else None
        if images:
            self._seconds_per_image = spent_seconds / images
            self.preparation_seconds = preparation_seconds / len(history)
        self._spent = spent_seconds + preparation_seconds
        self._validated_at = elapsed_seconds

    @property
    def is_measured(self) -> bool:
        """Whether the speed of a validation is known."""
        return self._seconds_per_image is not None

    def prepared(self, seconds: float) -> None:
        """Note how long the preparation of a validation took."""
        self.preparation_seconds = seconds
        self._spent += seconds

    def measured(self, images: int, seconds: float) -> None:
        """Note the speed of a first few images."""
        self._seconds_per_image = seconds / images

    def validated(self, images: int, seconds: float, elapsed_seconds: float) -> None:
        """Note that a validation is done."""
        if self._part is None or images < self._part:
            self._part = images
        self._seconds_per_image = seconds / images
        self._spent += seconds
        self._validated_at = elapsed_seconds

    def is_due(self, step: int, elapsed_seconds: float) -> bool:
        """Return whether a validation is worth its time after that step."""
        ends = step % self._steps_per_epoch == 0
        waited = elapsed_seconds - self._validated_at >= self._limit / _INTERVALS
        if not (ends or waited):
            return False
        if self._seconds_per_image is None:
            return waited or elapsed_seconds >= self._limit / _FIRST
        if elapsed_seconds > self._latest(self._seconds_per_image):
            return False
        each = self._part_of(self._seconds_per_image) * self._seconds_per_image
        each += self.preparation_seconds
        allowed = self._for_intermediate(self._seconds_per_image) * elapsed_seconds / self._limit
        return self._spent + each <= allowed

    def images(self, step: int, *, last: bool) -> int:  # noqa: ARG002 - by the clock
        """Return the number of images; the speed must be known."""
        seconds_per_image = self._seconds_per_image or 0.0
        return self._last_of(seconds_per_image) if last else self._part_of(seconds_per_image)

    def compared(self) -> int:
        """Return the size of the part that every validation includes."""
        return self._part if self._part is not None else self._whole

    def seconds_to_come(self, step: int, more: int, step_seconds: float) -> float:
        """Return how long the validations of the next `more` steps take, the last one included.

        Args:
            step: number of steps done.
            more: number of steps to come.
            step_seconds: duration of a step.
        """
        each = self._seconds_per_image
        if each is None:
            each = step_seconds / (_TRAINING_TO_VALIDATION * self._batch_size)
        part, last = (
            images * each + self.preparation_seconds
            for images in (self._part_of(each), self._last_of(each))
        )
        epochs = (step + more - 1) // self._steps_per_epoch - (step - 1) // self._steps_per_epoch
        intervals = int((self._limit - self._validated_at) * _INTERVALS / self._limit)
        room = self._for_intermediate(each) * self._latest(each) / self._limit - self._spent
        affordable = int(min(max(0.0, room) / part, _MANY)) if part > 0 else _MANY
        return min(epochs + intervals, affordable) * part + last

    def _latest(self, seconds_per_image: float) -> float:
        """Return when there is no time left for another validation and the last one."""
        images = self._part_of(seconds_per_image) + self._last_of(seconds_per_image)
        return self._limit - images * seconds_per_image - 2 * self.preparation_seconds

    def _for_intermediate(self, seconds_per_image: float) -> float:
        """Return the seconds for all validations but the last."""
        last = self._last_of(seconds_per_image) * seconds_per_image + self.preparation_seconds
        return self._limit * _SHARE - last

    def _last_of(self, seconds_per_image: float) -> int:
        """Return the images of the last validation: all, if they leave time for others."""
        whole = self._whole * seconds_per_image + self.preparation_seconds
        if whole <= self._limit * _SHARE / 2:
            return self._whole
        return self._part_of(seconds_per_image)

    def _part_of(self, seconds_per_image: float) -> int:
        """Return the images of a validation during training; fixed after the first one."""
        if self._part is not None:
            return self._part
        budget, prepared = self._limit * _SHARE, self.preparation_seconds
        whole = self._whole * seconds_per_image + prepared
        seconds = (
            (budget - whole) / _INTERVALS if whole <= budget / 2 else budget / (_INTERVALS + 1)
        )
        if whole <= seconds:
            return self._whole
        seconds -= prepared
        return min(self._whole, max(_FEWEST_IMAGES, int(seconds / seconds_per_image)))


_REPLANS = 40
"""The end is planned again after this fraction (1/40) of the time limit,"""
_REPLANS_TO_GO = 4
"""or this fraction (1/4) of the remaining steps, so more often near the end."""
_SETTLED_KNOTS, _SETTLED_SPREAD = 4, 1.05
"""The end counts as settled when the last four plans differ by at most 5%."""
_FEWEST_GUESSED = 20
"""Minimum of the first guess: the first step is slow, and few steps would skip the warm-up."""


class TimePlanner:
    """Plan the end of a run with a time limit from its measured speed.

    Args:
        plan: the plan of the steps, which is changed in place.
        limit_seconds: time limit from the first step to the end of the last validation.
        validations: the validations, which say how long they take.
        most_steps: number of steps that ends the run before the limit; None for no maximum.
    """

    def __init__(
        self,
        plan: StepPlan,
        limit_seconds: float,
        validations: Timed,
        most_steps: int | None = None,
    ) -> None:
        self._most_steps = UNKNOWN_END - 1 if most_steps is None else most_steps
        self.plan = plan
        self.limit_seconds = limit_seconds
        self._validations = validations
        self._mark: tuple[int, float] | None = None
        self._next_replan_seconds = 0.0
        self._next_replan_step = 0

    def restart(self, step: int, training_seconds: float) -> None:
        """Plan again after the next step, because training went back to `step`."""
        self._mark = (step, training_seconds)
        self._next_replan_seconds, self._next_replan_step = 0.0, 0

    @staticmethod
    def opening_plan() -> StepPlan:
        """Return the plan before anything is measured, without an end."""
        return StepPlan([(0, 0.0, UNKNOWN_END)])

    @property
    def has_measured(self) -> bool:
        """Whether the plan is based on more than the first guess."""
        return len(self.plan.knots) > 1

    @property
    def is_settled(self) -> bool:
        """Whether the planned end has stopped jumping, so that it is worth showing."""
        ends = [end for _, _, end in self.plan.knots[-_SETTLED_KNOTS:]]
        return len(ends) == _SETTLED_KNOTS and max(ends) <= _SETTLED_SPREAD * min(ends)

    def before_first_update(self, seconds: float) -> None:
        """Guess the end from the duration of the first gradient, for the first update."""
        most = int(self.limit_seconds / max(seconds, 1e-9))
        self._end_after(0, max(_FEWEST_GUESSED, most))

    def after_step(self, step: int, training_seconds: float, elapsed_seconds: float) -> None:
        """Plan again if it is time to.

        Args:
            step: number of steps done.
            training_seconds: their duration, without validation.
            elapsed_seconds: time since the start of the first step, including everything.
        """
        if self._mark is None:  # the first step also warms up caches, so it is not representative
            self._mark = (step, training_seconds)
            if elapsed_seconds >= self.limit_seconds:
                self.plan.end_after(step, 0)
            return
        if elapsed_seconds < self._next_replan_seconds and step < self._next_replan_step:
            return
        marked_step, marked_seconds = self._mark
        step_seconds = (training_seconds - marked_seconds) / (step - marked_step)
        self._mark = (step, training_seconds)
        left = self.limit_seconds - elapsed_seconds
        remaining = self._steps_within(left, step, step_seconds)
        remaining = self._end_after(step, remaining)
        self._next_replan_step = step + max(1, remaining // _REPLANS_TO_GO)
        self._next_replan_seconds = elapsed_seconds + self.limit_seconds / _REPLANS

    def _end_after(self, step: int, remaining: int) -> int:
        """Plan the end, and return how many steps remain."""
        remaining = max(0, min(remaining, self._most_steps - step))
        self.plan.end_after(step, remaining)
        return remaining

    def _steps_within(self, seconds: float, step: int, step_seconds: float) -> int:
        """Return how many more steps fit, including the validations."""

        def cost(more: int) -> float:
            validations = self._validations.seconds_to_come(step, more, step_seconds)
            return more * step_seconds + validations

        most = max(0, int(seconds / max(step_seconds, 1e-9)))
        return max(0, bisect.bisect_right(range(most + 1), seconds, key=cost) - 1)


ValidationPlan = EachEpoch | Recorded | Timed
"""Decides when to validate, besides the end of the training, and on how many images."""


@dataclass
class RunLength:
    """When a training run validates, and when it ends."""

    steps_per_epoch: int
    """Steps in an epoch of the training split."""
    validations: ValidationPlan
    """When to validate; a refit has no validation, but reports each epoch."""
    plan: StepPlan
    """Plan of the steps, which may follow that of another training."""
    planner: TimePlanner | None = None
    """Planner that changes the plan, with a time limit."""

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
            most_steps = settings.epochs * steps_per_epoch if settings.epochs else None
            # The cost of recorded validations is only estimated.
            return cls(
                steps_per_epoch, validations, plan, TimePlanner(plan, limit, timed, most_steps)
            )
        if knots is None:
            knots = tuple(StepPlan.of_steps(settings.epochs_without_limit * steps_per_epoch).knots)
        return cls(steps_per_epoch, validations, StepPlan(part.plan(knots, steps_per_epoch)))

    @property
    def timed(self) -> Timed | None:
        """The validations, if they have to fit into a time limit."""
        return self.validations if isinstance(self.validations, Timed) else None
