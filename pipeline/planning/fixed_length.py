"""The length of a planned training: steps that are fixed before the first one.

Speeds are measured once, and the number of steps follows from them and stays in the plan. So a run
that is resumed or repeated does the same steps, whatever else the machine does meanwhile; only a
time limit that the user sets follows the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from patchline.pipeline.planning.facts import PlanFacts
from patchline.pipeline.planning.recipes import Length
from patchline.pipeline.planning.user_settings import UserSettings
from patchline.pipeline.presets import PresetName
from patchline.pipeline.terminal_words import counted, duration

TRAINING_SHARE = 0.9
"""Of a time limit; validation takes the rest."""
_WHOLE_EPOCHS = 10
"""From here on, rounding down to whole epochs changes the length by less than a tenth."""
_ROUNDING = 1e-6
_TRAINING_TO_VALIDATION = 3
"""Cost of a training image in validation images, as the clock of a time limit assumes too."""
_VALIDATIONS, _FEWEST_IMAGES = 6, 64
"""Of a run whose validation split is too large to be validated after each epoch."""


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
    if not length_is_set(user.values):
        epochs = min(float(most_epochs), length.epochs / step_cost)
    else:
        epochs = length.epochs / step_cost if user.seconds else length.epochs
    return Length(epochs * images, epochs, rate)


def fixed_length(
    facts: PlanFacts, user: UserSettings, length: Length, *, batch: int, most_epochs: int
) -> dict[str, Any]:
    """Return the settings of the length: whole epochs, or the steps that fit into the time.

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
    if is_whole or "training.extends" in user:
        return {"epochs": max(1, int(length.epochs + _ROUNDING))}
    return {"step_plan": [[0, 0.0, steps]], **validations}


def planned_steps(length: Length, batch: int) -> int:
    """Return the steps of a length."""
    return max(1, round(length.images_seen / batch))


def _validations(facts: PlanFacts, length: Length, steps: int) -> dict[str, Any]:
    """Return steps and images of the validations, if one after each epoch would take too long."""
    split = facts.data.validation_images
    budget = length.images_seen * _TRAINING_TO_VALIDATION * (1 / TRAINING_SHARE - 1)
    if length.epochs >= 1 and math.ceil(length.epochs) * split <= budget:
        return {}
    each = min(split, max(_FEWEST_IMAGES, int(budget / _VALIDATIONS)))
    at = {max(1, round(steps * share / _VALIDATIONS)) for share in range(1, _VALIDATIONS + 1)}
    return {"validation_plan": [[step, each] for step in sorted(at)]} if each else {}


def length_is_set(settings: Mapping[str, Any]) -> bool:
    """Return whether settings by dotted key decide how long the training is."""
    keys = ("training.time_limit", "training.step_plan", "training.epochs")
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
