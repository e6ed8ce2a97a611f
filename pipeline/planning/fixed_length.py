"""The length of a planned training: steps that are fixed before the first one.

Speeds are measured once, and the number of steps follows from them and stays in the plan. So a run
that is resumed or repeated does the same steps, whatever else the machine does meanwhile; only a
time limit that the user sets follows the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from patchline.pipeline.planning.facts import PlanFacts, Speed, UserSettings
from patchline.pipeline.planning.recipes import MOST_TRAINING_SHARE, Length
from patchline.pipeline.presets import PresetName
from patchline.pipeline.terminal_words import counted, duration

_VALIDATION_TO_STEPS = 1 / MOST_TRAINING_SHARE - 1
"""What all validations take at most, as a multiple of the steps."""
_WHOLE_EPOCHS = 10
"""From here on, rounding down to whole epochs changes the length by less than a tenth."""
_ROUNDING = 1e-6
_TRAINING_TO_VALIDATION = 3
"""Cost of a training image in validation images, as the clock of a time limit assumes too."""
FIRST_AND_LAST, CHECKPOINT_PAUSE, CHECKPOINT_SHARE = 2, 15.0, 0.05
"""Checkpoints of every fit, after its first validation and at its end; and the seconds between
others, whose share of the time is limited, as `training.checkpoints` decides."""
_VALIDATIONS, _FEWEST_IMAGES = 6, 64
"""Of a run whose validation split is too large to be validated after each epoch."""


class EpochImages(NamedTuple):
    """The images of an epoch."""

    training: float
    validation: float


def with_step_cost(
    user: UserSettings, length: Length, step_cost: float, most_epochs: int
) -> Length:
    """Return the length, in which a step may cost less than a measured one.

    Args:
        user: what the user has set; a number of epochs or steps stays, and takes less time, and a
            time limit has no other maximum.
        length: at the measured cost.
        step_cost: mean cost of a step, as a fraction of a step with images of full size.
        most_epochs: at most, where the time decides.
    """
    rate, images = length.images_per_second / step_cost, length.images_seen / length.epochs
    shorter = replace(length, images_per_second=rate, overhead=length.overhead / step_cost)
    fitting = length.epochs * shorter.training_share / (length.training_share * step_cost)
    if not length_is_set(user.values):
        epochs = min(float(most_epochs), fitting)
    else:
        epochs = fitting if user.seconds else length.epochs
    return replace(shorter, images_seen=epochs * images, epochs=epochs)


def epoch_overhead(facts: PlanFacts, candidate: str, rate: float, fit: EpochImages) -> float:
    """Return what an epoch takes beside its steps, as a multiple of these.

    That is its validation, and then keeping the weights and a copy of the state. Where validations
    would take more than a tenth of the time, there are fewer of them.

    Args:
        facts: with what was measured.
        candidate: whose end of an epoch counts; if it was not measured, the largest that was.
        rate: training images/s.
        fit: the images of its epochs.
    """
    if not (fit.training and fit.validation and rate):
        return 0.0
    own, measured = _measured(facts, candidate)
    of_one = own.validated_per_second if own else 0.0
    validated = facts.machine.times_as_fast * of_one or _TRAINING_TO_VALIDATION * rate
    steps, validation = fit.training / rate, fit.validation / validated
    validations = min(1.0, _VALIDATION_TO_STEPS * steps / validation)
    end = measured.epoch_end_seconds if measured else 0.0
    return validations * (validation + end) / steps


def seconds_beside_checkpoints(facts: PlanFacts, candidate: str, seconds: float) -> float:
    """Return how much of the time of a fit is left for its epochs, at least half of it.

    Args:
        facts: with what was measured.
        candidate: as for `epoch_overhead`.
        seconds: of the fit.
    """
    _, measured = _measured(facts, candidate)
    if measured is None or not measured.checkpoint_seconds:
        return seconds
    each = measured.checkpoint_seconds
    written = FIRST_AND_LAST * each + seconds * min(CHECKPOINT_SHARE, each / CHECKPOINT_PAUSE)
    return max(seconds / 2, seconds - written)


def _measured(facts: PlanFacts, candidate: str) -> tuple[Speed | None, Speed | None]:
    """Return what was measured of a candidate, and of the largest model if it was not measured."""
    own = next((each for each in facts.speeds if each.candidate == candidate), None)
    return own, own or (facts.speeds[-1] if facts.speeds else None)


def fixed_length(
    facts: PlanFacts, user: UserSettings, length: Length, *, batch: int, most_epochs: int
) -> dict[str, Any]:
    """Return the sections with the length: whole epochs, or the steps that fit into the time.

    Args:
        facts: with the numbers of images.
        user: what the user has set.
        length: that fits into the preset's time.
        batch: images of a step.
        most_epochs: at most.
    """
    steps = planned_steps(length, batch)
    validations = _validations(facts, length, steps)
    is_whole = length.epochs >= min(most_epochs, _WHOLE_EPOCHS) and not validations
    if is_whole or "record.extends" in user:
        return {"training": {"epochs": max(1, int(length.epochs + _ROUNDING))}}
    return {"record": {"step_plan": [[0, 0.0, steps]], **validations}}


def planned_steps(length: Length, batch: int) -> int:
    """Return the steps of a length."""
    return max(1, round(length.images_seen / batch))


def _validations(facts: PlanFacts, length: Length, steps: int) -> dict[str, Any]:
    """Return steps and images of the validations, if one after each epoch would take too long."""
    split = facts.data.validation_images
    budget = length.images_seen * _TRAINING_TO_VALIDATION * _VALIDATION_TO_STEPS
    if length.epochs >= 1 and math.ceil(length.epochs) * split <= budget:
        return {}
    each = min(split, max(_FEWEST_IMAGES, int(budget / _VALIDATIONS)))
    at = {max(1, round(steps * share / _VALIDATIONS)) for share in range(1, _VALIDATIONS + 1)}
    return {"validation_plan": [[step, each] for step in sorted(at)]} if each else {}


def length_is_set(settings: Mapping[str, Any]) -> bool:
    """Return whether settings by dotted key decide how long the training is."""
    keys = ("training.time_limit", "record.step_plan", "training.epochs")
    return any(settings.get(key) is not None for key in keys)


def longest_set(user: UserSettings) -> int | None:
    """Return the most epochs in a time limit, if the user sets both."""
    most = user.get("training.max_epochs") if user.seconds else None
    return int(most) if most else None


# -- in words ----------------------------------------------------------------------------------


def shorter(preset: PresetName) -> str:
    """Return how a planned training is made shorter."""
    by_preset = "" if preset == "quick" else "--preset quick or "
    return f"for less, {by_preset}--training.time-limit"


def number(value: float) -> str:
    """Return a number of epochs, or of images a second, with about two digits."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004 - two digits


def aim(facts: PlanFacts, user: UserSettings, most: int) -> str:
    """Return what the preset aims at, and what shortens it; nothing if the user sets the length.

    Args:
        facts: with the preset.
        user: what the user has set.
        most: epochs that the preset trains at most.
    """
    if length_is_set(user.values):
        return ""
    minutes = duration(facts.minutes * 60)
    warm = " for a warm start" if facts.length_share < 1 else ""
    words = f"{facts.preset} aims at {minutes}{warm}, at most {counted(most, 'epoch')}"
    return f" ({words}; {shorter(facts.preset)})"
