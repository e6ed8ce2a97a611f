"""The plan for training without labels: the length; model and recipe stay the objective's own.

A pure function, as in `patchline.pipeline.planning.plan`. Nothing about the accuracy of a
classifier that starts from the encoder can be planned from images without labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.planning import tiers
from patchline.pipeline.planning.facts import Plan, PlanFacts, UserSettings
from patchline.pipeline.planning.fixed_length import (
    EpochImages,
    aim,
    epoch_overhead,
    fixed_length,
    length_is_set,
    number,
    seconds_beside_checkpoints,
)
from patchline.pipeline.planning.recipes import Length
from patchline.pipeline.planning.tiers import OWN, TIERS
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.terminal_words import duration, epochs_in_words
from patchline.pipeline.training.initial_weights import recipe

_DEFAULTS = RunConfig()
_FEWER_FROM_WEIGHTS = 3
"""Continued pre-training takes a third of the epochs, as a warm start does."""


def pretraining_plan(facts: PlanFacts, user_settings: Mapping[str, Any]) -> Plan:
    """Return the plan of a run whose objective uses no labels.

    Args:
        facts: data, machine, and the measured speed of the model with its objective.
        user_settings: what the user has set, by dotted key; never changed.
    """
    user = UserSettings(user_settings)
    starts = bool(user.get("model.init"))
    settings: dict[str, Any] = {}
    if starts:
        settings = {"optimizer": recipe.WARM_START["optimizer"]}
    most = _most_epochs(facts, user, starts=starts)
    length = _length(facts, user, most)
    if not length_is_set(user.values):
        batch = user.get("training.batch_size") or _DEFAULTS.training.batch_size
        own = fixed_length(facts, user, length, batch=batch, most_epochs=most)
        settings = config_files.merged(settings, own)
    reasons = [_why_length(facts, user, length, most)]
    measured = next((each for each in facts.speeds if each.candidate == OWN), None)
    workers = tiers.workers(facts.machine, measured) if measured else 0
    if measured and workers and "data.workers" not in user:
        settings = config_files.merged(settings, {"data": {"workers": workers}})
        reasons.append(tiers.why_workers(facts.machine, workers, measured.loaded_per_second))
    return Plan(
        settings=user.without_set(settings),
        summary=_summary(user, settings, length, starts=starts),
        reasons=tuple(reasons),
        images_per_second=length.images_per_second,
        facts=facts,
    )


def _most_epochs(facts: PlanFacts, user: UserSettings, *, starts: bool) -> int:
    epochs = PRESETS[facts.preset].epochs
    epochs = epochs // _FEWER_FROM_WEIGHTS if starts else epochs
    return int(min(epochs, user.get("training.max_epochs") or epochs))


def _length(facts: PlanFacts, user: UserSettings, most: int) -> Length:
    rate = tiers.images_per_second(facts, TIERS[1], TIERS, OWN)
    images = max(1, facts.data.training_images)
    fit = EpochImages(images, facts.data.validation_images)
    length = Length(0.0, 0.0, rate, epoch_overhead(facts, OWN, rate, fit))
    knots = user.get("record.step_plan")
    if knots:
        batch = user.get("training.batch_size") or _DEFAULTS.training.batch_size
        seen = float(knots[-1][2] * batch)
    elif user.seconds:
        seconds = seconds_beside_checkpoints(facts, OWN, user.seconds)
        seen = rate * seconds * length.training_share
    elif user.get("training.epochs"):
        seen = float(user.get("training.epochs") * images)
    else:
        seconds = seconds_beside_checkpoints(facts, OWN, PRESETS[facts.preset].minutes * 60)
        seen = min(float(most * images), rate * seconds * length.training_share)
    return replace(length, images_seen=seen, epochs=seen / images)


# -- in words ----------------------------------------------------------------------------------


def _summary(
    user: UserSettings, settings: Mapping[str, Any], length: Length, *, starts: bool
) -> tuple[str, str]:
    model = user.get("model.name", _DEFAULTS.model.name)
    of = "that of the initial weights" if starts else f"{model}, as set or by default"
    optimizer = settings.get("optimizer", {})
    default = optimizer.get("learning_rate", _DEFAULTS.optimizer.learning_rate)
    rate = user.get("optimizer.learning_rate", default)
    name = user.get("optimizer.name", _DEFAULTS.optimizer.name)
    limit = user.get("training.time_limit")
    epochs = epochs_in_words(length.epochs)
    long = f"{limit}, about {epochs}" if limit else epochs
    return f"model: {of}", f"pre-training without labels: {long}, {name} at {rate:g}"


def _why_length(facts: PlanFacts, user: UserSettings, length: Length, most: int) -> str:
    verb = "measured" if tiers.is_measured(facts, OWN) else "estimated"
    known = (
        f"{verb} {number(length.images_per_second)} images/s "
        f"({facts.machine.computes_on}) on {facts.data.training_images:,} training images"
    )
    epochs = epochs_in_words(length.epochs)
    if limit := user.get("training.time_limit"):
        return f"{known}: {limit}, including validation, is about {epochs}"
    took = f"{epochs} take about {duration(length.seconds / length.training_share)}"
    return f"{known}: {took}{aim(facts, user, most)}"
