"""The plan for published weights: train the head alone, then the last blocks or all weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from patchline.pipeline import config_files
from patchline.pipeline.planning import tiers as rates
from patchline.pipeline.planning.draft import Draft
from patchline.pipeline.planning.facts import Plan, PlanFacts, UserSettings
from patchline.pipeline.planning.last_blocks import (
    FEWEST_IMAGES,
    NEEDED,
    BlocksLength,
    blocks_length,
    forbidding_settings,
    suits_blocks,
)
from patchline.pipeline.planning.rules import shorter, time_of_teacher, why_repeated
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.terminal_words import counted, duration, epochs_in_words
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.initial_weights import recipe

FEATURES = "features"
"""The candidate that stands for the initial weights; its speed is that of their features."""
_STEP = 3.5
"""Passes without gradients that a training step takes: forward, backward, update."""
_FEWEST_IMAGES, _FEWEST_UPDATES = 20, 30
"""Training images of a class, and updates, from which all weights may beat the head alone."""
_EPOCHS: int = recipe.FINE_TUNING["training"]["epochs"]
_UPDATES, _MOST_EPOCHS = 100, 30
"""Few images get more epochs for as many updates, up to a number of epochs."""
_BATCH: int = recipe.FINE_TUNING["training"]["batch_size"]
_SHARE_OF_TRAINING = 2 / 3
"""Of the time; the rest is for the features. So more images are never trained for a shorter time
until their features need more than their share."""
_BYTES_OF_A_PARAMETER = 20
"""In training: weights, gradients, the optimizer's two moments and the average of the weights, in
float32."""
_SHARE_OF_MEMORY = 0.6
"""For these; the rest is for the images of a step, which are divided where they do not fit."""


class _Cost(NamedTuple):
    """Seconds that each part takes."""

    features: float
    epoch: float


class _Length(NamedTuple):
    """How long all weights are trained."""

    epochs: float
    updates: float
    most: int
    """Epochs where there is time for all of them."""

    @property
    def is_limited(self) -> bool:
        """Whether the time ends it before all epochs."""
        return self.epochs < self.most


def fine_tuning_plan(facts: PlanFacts, user_settings: Mapping[str, Any]) -> Plan:
    """Return the plan of a run with a preset that starts from published weights.

    The head alone is never a bad choice: it is fitted in seconds on features that are computed
    once. All weights are trained after it where there are images and time for all epochs of it, and
    else the last blocks (`patchline.pipeline.planning.last_blocks`).

    Args:
        facts: data, machine, and the measured speed of the features.
        user_settings: what the user has set, by dotted key; never changed.
    """
    user = UserSettings(user_settings)
    speed = _features_per_second(facts)
    cost = _cost(facts, speed) if speed else None
    length, blocks = _length(facts, user, cost), blocks_length(facts, user, speed)
    chosen = user.get("training.trainable") or _chosen(facts, user, cost, length, blocks)
    many = facts.data.is_mostly_validated and Draft(facts, user).may_repeat
    repeated = {"refit": True} if many and chosen == "head" else {}
    training: dict[str, Any] = {"training": {"trainable": chosen, **repeated}}
    if chosen == "last_blocks":
        training = config_files.merged(recipe.LAST_BLOCKS, training)
        training = config_files.merged(training, blocks.settings(user))
    elif chosen != "head":
        training = config_files.merged(recipe.FINE_TUNING, training)
        training = config_files.merged(training, _settings_of(length, user))
    workers, why_workers = _workers(facts, user, chosen)
    training = config_files.merged(training, workers)
    return Plan(
        settings=user.without_set(training),
        summary=_summary(user, chosen, training),
        reasons=(
            *_reasons(facts, user, cost, chosen, length, blocks),
            *filter(None, [why_repeated(Draft(facts, user, repeated=repeated))] * bool(repeated)),
            *filter(None, [why_no_blocks(facts, user_settings)]),
            *why_workers,
            *filter(None, [time_of_teacher(facts, user)]),
        ),
        images_per_second=_training_rate(chosen, speed or 1.0, blocks),
        seconds_before=_seconds_before(chosen, cost, blocks),
        facts=facts,
    )


def _training_rate(chosen: str, speed: float, blocks: BlocksLength) -> float:
    """Return the training images per second; of a head alone, those of the features."""
    if chosen == "head":
        return speed
    return blocks.images_per_second or speed if chosen == "last_blocks" else speed / _STEP


def _seconds_before(chosen: str, cost: _Cost | None, blocks: BlocksLength) -> float:
    """Return how long features and tokens take before the first step."""
    if cost is None or chosen in ("head", "all"):
        return 0.0
    return cost.features + (blocks.token_seconds if chosen == "last_blocks" else 0.0)


def _workers(
    facts: PlanFacts, user: UserSettings, chosen: str
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the data-loader workers for steps of all weights, and why; the others load nothing.

    Each image of a head is predicted once, and tokens are computed once too.
    """
    features = next((each for each in facts.speeds if each.candidate == FEATURES), None)
    if features is None or chosen not in ("head_then_all", "all") or "data.workers" in user:
        return {}, []
    loaded = features.loaded_per_second
    number = rates.workers_for(facts.machine, features.images_per_second / _STEP, loaded)
    if not number:
        return {}, []
    return {"data": {"workers": number}}, [rates.why_workers(facts.machine, number, loaded)]


def _features_per_second(facts: PlanFacts) -> float:
    """Return how many features all processes compute in a second; 0 if that is not known."""
    speeds = (each.images_per_second for each in facts.speeds if each.candidate == FEATURES)
    return facts.machine.times_as_fast * next(speeds, 0.0)


def why_no_blocks(facts: PlanFacts, user_settings: Mapping[str, Any]) -> str:
    """Return which settings keep the last blocks from being trained; empty if none does.

    Args:
        facts: as of the plan.
        user_settings: what the user has set, by dotted key.
    """
    user = UserSettings(user_settings)
    forbidding = forbidding_settings(user)
    if "training.trainable" in user or forbidding in ([], ["training.folds"]):  # which has a reason
        return ""
    possible = UserSettings({**user.values, "model.name": "vit", **NEEDED})
    speed = _features_per_second(facts)
    cost = _cost(facts, speed) if speed else None
    blocks = blocks_length(facts, possible, speed)
    if _chosen(facts, possible, cost, _length(facts, possible, cost), blocks) != "last_blocks":
        return ""
    if forbidding[0] == "model.name":
        name = user.get("model.name")
        return f"the last blocks are not trained: those of a {name} model cannot be trained alone"
    *others, last = (f"{key} is {str(user.get(key)).lower()}" for key in forbidding)
    listed, them = (f"{', '.join(others)} and {last}", "these") if others else (last, "it")
    return (
        "the last blocks are not trained, although there are images and time for them: "
        f"{listed}, and they are trained on stored tokens, without {them}; leave "
        f"{'all of them' if others else 'it'} out to train the last blocks"
    )


def _cost(facts: PlanFacts, speed: float) -> _Cost:
    data = facts.data
    epoch = _STEP * data.training_images + data.validation_images
    return _Cost(data.images / speed, epoch / speed)


def _seconds(facts: PlanFacts, user: UserSettings) -> float:
    """Return how long all weights may be trained."""
    return user.seconds or PRESETS[facts.preset].minutes * 60


def _most_epochs(facts: PlanFacts, user: UserSettings) -> int:
    """Return the epochs where there is time: more for few images, which make few updates."""
    if is_set := user.get("training.epochs") or user.longest_set:
        return int(is_set)
    updates_of_epoch = math.ceil(max(1, facts.data.training_images) / _BATCH)
    return min(_MOST_EPOCHS, max(_EPOCHS, math.ceil(_UPDATES / updates_of_epoch)))


def _length(facts: PlanFacts, user: UserSettings, cost: _Cost | None) -> _Length:
    """Return how long all weights are trained: all epochs, or as many as fit into the time."""
    most, seconds = _most_epochs(facts, user), _seconds(facts, user)
    epochs = float(most)
    if cost is not None and "training.epochs" not in user:
        if not user.seconds:  # a limit of the user is for the training alone
            beside = facts.seconds_beside_teacher
            seconds = max(0.0, min(beside - cost.features, _SHARE_OF_TRAINING * seconds))
        fits = sum(Draft(facts, user).fits) / max(1, facts.data.training_images)
        epochs = min(epochs, seconds / (cost.epoch * fits))
    batch = user.get("training.batch_size") or _BATCH
    return _Length(epochs, epochs * facts.data.training_images / batch, most)


def _settings_of(length: _Length, user: UserSettings) -> dict[str, Any]:
    """Return epochs, most epochs in a time limit, or the steps where the time ends them."""
    if user.seconds:
        return {"training": {"max_epochs": length.most}}
    if length.is_limited and not user.length_is_set:
        return {"record": {"step_plan": [[0, 0.0, max(1, round(length.updates))]]}}
    return {"training": {"epochs": max(1, round(length.epochs))}}


def _enough_images(facts: PlanFacts) -> bool:
    return facts.data.has_per_class(_FEWEST_IMAGES)


def _training_gib(facts: PlanFacts) -> float:
    """Return the memory that training all weights takes, without images; 0 if it is not known."""
    return facts.parameters * _BYTES_OF_A_PARAMETER / 2**30


def _fits_memory(facts: PlanFacts) -> bool:
    return _training_gib(facts) <= _SHARE_OF_MEMORY * facts.machine.memory_gib


def _repeated(user: UserSettings) -> str:
    """Return the setting that repeats the training, if there is one.

    How far all weights go from the head is decided by one validation split.
    """
    settings = ("training.folds", "training.refit")
    return next((name for name in settings if user.get(name)), "")


def _needs_all(user: UserSettings) -> str:
    """Return the setting that only a training run of all weights has, if there is one."""
    settings = (f"training.{name}" for name in recipe.OF_ALL_WEIGHTS)
    return next((name for name in (*settings, "record.extends") if user.get(name)), "")


def _chosen(
    facts: PlanFacts,
    user: UserSettings,
    cost: _Cost | None,
    length: _Length,
    blocks: BlocksLength,
) -> str:
    """Return what is trained; `training.trainable` lists the choices.

    Args:
        facts: the numbers of images.
        user: what the user has set.
        cost: None if the speed is not known.
        length: of all weights.
        blocks: length of the last blocks.
    """
    if _needs_all(user):
        return "all"
    is_open = cost is not None and not forbidding_settings(user)
    suits = is_open and suits_blocks(facts, user, blocks)
    otherwise = "last_blocks" if suits else "head"
    if _repeated(user):
        return otherwise
    enough_time = cost is not None and length.updates >= _FEWEST_UPDATES
    if suits and length.is_limited:
        enough_time = False
    if "training.epochs" in user and cost is not None:
        enough_time = length.epochs * cost.epoch <= _seconds(facts, user)
    suits_all = enough_time and _enough_images(facts) and _fits_memory(facts)
    return "head_then_all" if suits_all else otherwise


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
    if limit:
        most = user.get("training.max_epochs", training["max_epochs"])
        long = f"for {limit}" + (f", at most {counted(most, 'epoch')}" if most else "")
    else:
        long = _for(user.get("training.epochs", training["epochs"]))
    if knots := settings.get("record", {}).get("step_plan"):
        long = f"for {knots[-1][-1]:,} steps"
    last = user.get("training.last_blocks", TrainingConfig().last_blocks)
    first = {
        "head_then_all": "the head, then all weights",
        "last_blocks": f"the head, then the last {counted(last, 'block')}",
    }.get(chosen, "all weights")
    return model, f"training: {first} {long}, learning rate {rate}, layer decay {decay}"


def _for(epochs: float) -> str:
    return f"for {epochs_in_words(epochs)}"


def _reasons(
    facts: PlanFacts,
    user: UserSettings,
    cost: _Cost | None,
    chosen: str,
    length: _Length,
    blocks: BlocksLength,
) -> list[str]:
    data, machine = facts.data, facts.machine
    known = f"{data.training_images:,} training images in {data.classes_in_words}"
    if "training.trainable" in user:
        return [f"{known}: training.trainable as set"]
    if needed := _needs_all(user):
        return [f"{known}: {needed} needs a training run of all weights"]
    if cost is None:
        return [f"{known}: the speed is not known, so only the head is trained"]
    every = data.images
    where = machine.computes_on
    speed = every / cost.features
    measured = (
        f"measured {speed:.3g} images/s without gradients ({where}): the features of all "
        f"{every:,} images take about {duration(cost.features)}"
    )
    if chosen == "last_blocks":
        ends = _what_ends(facts, user, blocks.most, is_limited=blocks.is_limited)
        reasons = [measured, f"{known}: {blocks.sentence()}{ends}"]
        return reasons if _fits_memory(facts) else [*reasons, _why_memory(facts)]
    return [measured, f"{known}: {_why(facts, user, cost, chosen, length)}"]


def _too_few(facts: PlanFacts) -> str:
    """Return what the images are too few for, if they are."""
    per = f"per {facts.data.class_word}"
    if not facts.data.has_per_class(FEWEST_IMAGES):
        return f"fewer than {FEWEST_IMAGES} {per}, too few to train more than the head"
    if not _enough_images(facts):
        return f"fewer than {_FEWEST_IMAGES} {per}, too few to train all weights"
    return ""


def _why_memory(facts: PlanFacts) -> str:
    """Return why all weights are not trained where they do not fit."""
    return (
        f"training all {facts.parameters / 1e6:,.0f} million weights takes "
        f"{_training_gib(facts):.2g} GiB besides the images of a step, too much for the "
        f"{facts.machine.memory_gib:.3g} GiB of memory"
    )


def _what_ends(facts: PlanFacts, user: UserSettings, most: int, *, is_limited: bool) -> str:
    """Return what makes a training shorter, or what ends it before the limit that the user sets."""
    if user.seconds and not is_limited and user.get("training.max_epochs", most):
        epochs = counted(most, "epoch")
        return f"; it ends after {epochs} (training.max_epochs), before training.time_limit"
    return "" if user.length_is_set else f" ({shorter(facts.preset)})"


def _why(facts: PlanFacts, user: UserSettings, cost: _Cost, chosen: str, length: _Length) -> str:
    if chosen == "head_then_all":
        took = duration(length.epochs * cost.epoch)
        return (
            f"training all weights {_for(length.epochs)} ({length.updates:,.0f} updates) takes "
            f"about {took} more, and is kept as far as the validation images allow"
            f"{_what_ends(facts, user, length.most, is_limited=length.is_limited)}"
        )
    if repeated := _repeated(user):
        return f"with {repeated}, only the head is fitted unless training.trainable is set"
    if few := _too_few(facts):
        return few
    if not _fits_memory(facts):
        return _why_memory(facts)
    budget = user.get("training.time_limit") or f"{PRESETS[facts.preset].minutes:g} minutes"
    if epochs := user.get("training.epochs"):
        took = duration(epochs * cost.epoch)
        return f"training all weights {_for(epochs)} would take about {took}, longer than {budget}"
    left = "" if user.seconds else " beside the features"
    return (
        f"{budget} have time for about {length.updates:,.0f} updates of all weights{left}, too few "
        f"(at least {_FEWEST_UPDATES})"
    )
