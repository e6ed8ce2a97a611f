"""The plan for published weights: train the head alone, or the head and then all weights.

A pure function, as in `patchline.pipeline.planning.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from patchline.pipeline import config_files
from patchline.pipeline.initial_weights import recipe
from patchline.pipeline.planning.facts import Plan, PlanFacts
from patchline.pipeline.planning.fixed_length import length_is_set, shorter
from patchline.pipeline.planning.plan import images_by_training
from patchline.pipeline.planning.user_settings import UserSettings
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.terminal_words import duration

FEATURES = "features"
"""The candidate that stands for the initial weights; its speed is that of their features."""
_STEP = 3.5
"""Passes without gradients that a training step takes: forward, backward, update."""
_FEWEST_IMAGES, _FEWEST_EPOCHS = 20, 3
"""Training images of a class, and epochs, from which all weights may beat the head alone."""
_MOST_EPOCHS: int = recipe.FINE_TUNING["training"]["epochs"]


class _Cost(NamedTuple):
    """Seconds that each part takes."""

    features: float
    epoch: float


def fine_tuning_plan(facts: PlanFacts, user_settings: Mapping[str, Any]) -> Plan:
    """Return the plan of a run with a preset that starts from published weights.

    The head alone is never a bad choice: it is fitted in seconds on features that are computed
    once. All weights are trained after it where there are images and time for it.

    Args:
        facts: data, machine, and the measured speed of the features.
        user_settings: what the user has set, by dotted key; never changed.
    """
    user = UserSettings(user_settings)
    speed = next((each.images_per_second for each in facts.speeds if each.candidate == FEATURES), 0)
    cost = _cost(facts, speed) if speed else None
    epochs = user.get("training.epochs") or _fitting_epochs(facts, user, cost)
    chosen = user.get("training.trainable") or _chosen(facts, user, cost, epochs)
    training = {"training": {"trainable": chosen}}
    if chosen != "head":
        training = config_files.merged(recipe.FINE_TUNING, training)
        training["training"]["epochs"] = max(1, epochs)
    return Plan(
        settings=user.without_set(training),
        summary=_summary(user, chosen, training),
        reasons=tuple(_reasons(facts, user, cost, chosen, epochs)),
        images_per_second=(speed or 1.0) / (1.0 if chosen == "head" else _STEP),
        facts=facts,
    )


def _cost(facts: PlanFacts, speed: float) -> _Cost:
    data = facts.data
    every = data.training_images + data.validation_images + data.test_images
    epoch = _STEP * data.training_images + data.validation_images
    return _Cost(every / speed, epoch / speed)


def _seconds(facts: PlanFacts, user: UserSettings) -> float:
    """Return how long all weights may be trained."""
    return user.seconds or PRESETS[facts.preset].minutes * 60


def _fitting_epochs(facts: PlanFacts, user: UserSettings, cost: _Cost | None) -> int:
    if cost is None:
        return _MOST_EPOCHS
    left = _seconds(facts, user) - (0.0 if user.seconds else cost.features)
    fits = sum(images_by_training(facts, user)) / max(1, facts.data.training_images)
    return min(_MOST_EPOCHS, int(max(0.0, left) / (cost.epoch * fits)))


def _enough_images(facts: PlanFacts) -> bool:
    return facts.data.training_images >= _FEWEST_IMAGES * facts.data.classes


def _repeated(user: UserSettings) -> str:
    """Return the setting that repeats the training, if there is one.

    The comparison of the head with all weights needs one validation split.
    """
    settings = ("training.folds", "training.refit")
    return next((name for name in settings if user.get(name)), "")


def _needs_all(user: UserSettings) -> str:
    """Return the setting that only a training run of all weights has, if there is one."""
    settings = ("training.average_last", "training.ensemble")
    return next((name for name in settings if user.get(name)), "")


def _chosen(facts: PlanFacts, user: UserSettings, cost: _Cost | None, epochs: int) -> str:
    if _needs_all(user):
        return "all"
    if _repeated(user):
        return "head"
    enough_time = cost is not None and epochs >= _FEWEST_EPOCHS
    if "training.epochs" in user and cost is not None:
        enough_time = epochs * cost.epoch <= _seconds(facts, user)
    return "head_then_all" if enough_time and _enough_images(facts) else "head"


# -- in words ----------------------------------------------------------------------------------


def _summary(user: UserSettings, chosen: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    side = user.get("data.image_size")
    pixels = f", for images of {side}x{side} pixels" if side else ""
    model = f"model: that of the initial weights{pixels}"
    if chosen == "head":
        return model, "training: the head alone, on features that are computed once"
    optimizer, training = settings["optimizer"], settings["training"]
    rate = user.get("optimizer.learning_rate", optimizer["learning_rate"])
    decay = user.get("optimizer.layer_decay", optimizer["layer_decay"])
    limit = user.get("training.time_limit")
    long = f"for {limit}" if limit else _epochs(user.get("training.epochs", training["epochs"]))
    first = "the head, then all weights" if chosen == "head_then_all" else "all weights"
    return model, f"training: {first} {long}, learning rate {rate}, layer decay {decay}"


def _epochs(number: int) -> str:
    return f"for {number} epoch{'' if number == 1 else 's'}"


def _reasons(
    facts: PlanFacts, user: UserSettings, cost: _Cost | None, chosen: str, epochs: int
) -> list[str]:
    data, machine = facts.data, facts.machine
    known = f"{data.training_images:,} training images in {data.classes:,} classes"
    if "training.trainable" in user:
        return [f"{known}: training.trainable as set"]
    if needed := _needs_all(user):
        return [f"{known}: {needed} needs a training run of all weights"]
    if cost is None:
        return [f"{known}: the speed is not known, so only the head is trained"]
    every = data.training_images + data.validation_images + data.test_images
    where = machine.computes_on
    speed = every / cost.features
    measured = (
        f"measured {speed:.3g} images/s without gradients ({where}): the features of all "
        f"{every:,} images take about {duration(cost.features)}"
    )
    return [measured, f"{known}: {_why(facts, user, cost, chosen, epochs)}"]


def _why(facts: PlanFacts, user: UserSettings, cost: _Cost, chosen: str, epochs: int) -> str:
    if chosen == "head_then_all":
        took = duration(epochs * cost.epoch)
        remedy = "" if length_is_set(user.values) else f" ({shorter(facts.preset)})"
        return (
            f"training all weights {_epochs(epochs)} takes about {took} more, and is kept only if "
            f"it is significantly better on the validation images{remedy}"
        )
    if repeated := _repeated(user):
        return f"with {repeated}, only the head is fitted unless training.trainable is set"
    if not _enough_images(facts):
        return f"fewer than {_FEWEST_IMAGES} per class, too few to train all weights"
    least = user.get("training.epochs") or _FEWEST_EPOCHS
    budget = user.get("training.time_limit") or f"{PRESETS[facts.preset].minutes:g} minutes"
    took = duration(least * cost.epoch)
    return f"training all weights {_epochs(least)} would take about {took}, longer than {budget}"
