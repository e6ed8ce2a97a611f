"""The plan: from facts and the user's settings to a model and a training recipe.

A pure function; `patchline.pipeline.stages.plan` collects the facts and remembers the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from patchline.pipeline.data.image_size import default_image_size
from patchline.pipeline.planning import recipes, tiers
from patchline.pipeline.planning.facts import Plan, PlanFacts, UserSettings
from patchline.pipeline.planning.fixed_length import (
    EpochImages,
    aim,
    epoch_overhead,
    fixed_length,
    length_is_set,
    number,
    seconds_beside_checkpoints,
    with_step_cost,
)
from patchline.pipeline.planning.recipes import Length
from patchline.pipeline.planning.tiers import (
    OWN,
    PHOTOGRAPH_TIERS,
    THUMBNAIL,
    TIERS,
    Tier,
    halvings,
    image_side,
    share_for_classes,
    tiers_for,
    tokens,
)
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.terminal_words import counted, duration, epochs_in_words
from patchline.pipeline.training.job import images_of_fits

Settings = dict[str, Any]
_SMALLEST_WHITENED = 5
_WHY_FLIPPED = (
    "mirrored images show the same classes: an image is predicted together with its mirror image, "
    "which takes twice as long (test_time_flip)"
)
_WHY_MIRRORED = (
    "mirrored images show the same classes: the embedding mirrors every filter, so that an image "
    "and its mirror image get the same prediction (mirror_equivariant)"
)
_FEWER_FOR_THUMBNAILS, _LEAST_FOR_THUMBNAILS = 7, 5
"""Thumbnails take this fraction of a preset's epochs (1/7), and at least so many."""
_AVERAGED, _AVERAGED_FROM, _FEW_TO_CHOOSE_ON = 3, 4, 1_000
"""For thumbnails: the validations whose weights are averaged, the epochs from which
they are, and the validation images from which the best epoch is chosen instead. On the scanned
digits, 261 images chose epochs of 97.2 to 100 % test accuracy after 17 epochs, and the average of
the last three of 8 epochs had 99.0 to 99.7 % (5 seeds)."""
FEWEST_STEPS = 100
"""Updates of the weights below which a plan says that the model will be poor; batches are chosen to
leave as many."""
BUSY_CORES = 0.5
"""CPU cores used by other programs from which a plan mentions them, and tries fewer threads."""
_ROUNDING = 1e-6
_STEPS_OF_A_PLAN = 128
"""Images in a step of a recorded step plan whose batch size is not set."""
FOLDS = 5
FEW_FOR_A_CHOICE, _FEW_FOR_A_METRIC = 50, 150
"""Validation images below which a run takes folds or a refit: one image of 50 is 2 points, more
than the epochs between which the validation chooses differ."""
_STEPS_OF_A_FIT = 400
"""Updates that each of several fits needs; with fewer, one longer fit is better."""
LEAST_BESIDE_TEACHER = 1 / 3
"""Of a preset's time for the training itself, however slow the teacher is."""
_ONE_FIT = (
    *("training.folds", "training.refit", "training.ensemble", "training.average_last"),
    *("training.epochs", "record.step_plan", "record.extends", "training.early_stopping"),
)
"""Settings of the user with which the plan does not repeat the training."""


@dataclass(frozen=True)
class Candidate:
    """A model that could be trained, with the settings to measure it with."""

    name: str
    tier: Tier
    side: int
    settings: Settings


def plan(facts: PlanFacts, user_settings: Mapping[str, Any], *, follows: bool = False) -> Plan:
    """Return the plan for a preset.

    Args:
        facts: data, machine and measured speeds.
        user_settings: what the user has set, by dotted key; never changed, and the rest fits it.
        follows: whether some of these follow from initial weights.
    """
    asked = UserSettings(user_settings)
    user, chosen, length, batch, repeated = decided(facts, user_settings, follows=follows)
    decay, stochastic_depth = recipes.regularisation(user, chosen.tier, batch, length)
    training: Settings = {"batch_size": batch, "ema_decay": decay, **repeated}
    if user.leaves_model and user.leaves_embedding:
        training |= recipes.smaller_images_first(facts, chosen.tier, chosen.side, length)
    cost = _step_cost(facts, chosen.name, training)
    whole = with_step_cost(user, length, cost, most_epochs(facts, user))
    if is_averaged := _is_averaged(facts, user, chosen, whole):
        training["average_last"] = _AVERAGED
    of_length: Settings = {}
    if not length_is_set(user.values):
        most = most_epochs(facts, user)
        of_length = fixed_length(facts, user, whole, batch=batch, most_epochs=most)
        training |= of_length.get("training", {})
    settings: Settings = {
        **of_length,
        **chosen.settings,
        "optimizer": recipes.optimizer(facts, user, chosen.tier, chosen.side, batch, length),
        "training": training,
    }
    if recipes.is_mixed(facts, chosen.tier, chosen.side, length):
        training |= {"mixup": 0.2, "cutmix": 1.0}
    if "model" in settings and stochastic_depth and user.leaves_model:
        settings["model"] = {**settings["model"], "stochastic_depth": stochastic_depth}
    augmentation, why = recipes.augmentation(facts, chosen.tier, chosen.side, length)
    if user.leaves_augmentation:
        settings["augmentation"] = augmentation
    loaded = next((each for each in facts.speeds if each.candidate == chosen.name), None)
    workers = tiers.workers(facts.machine, loaded) if loaded else 0
    if workers:
        settings["data"] = {**settings.get("data", {}), "workers": workers}
    window, why_windows = recipes.shuffle_window(facts, chosen.side)
    if window < 1:
        training["shuffle_window"] = window
    settings = asked.without_set(settings)
    reasons = [
        _why_model(facts, chosen, user, follows=follows),
        _why_length(facts, chosen, length, whole, user),
        *([] if follows else why_repeated(facts, asked, repeated)),
        *_why_averaged(facts) * is_averaged,
        *time_of_teacher(facts, user),
    ]
    reasons += [why] if user.leaves_augmentation else []
    reasons += _why_mirrored(settings.get("model", {}), facts, user)
    if loaded and "workers" in settings.get("data", {}):
        reasons.append(tiers.why_workers(facts.machine, workers, loaded.loaded_per_second))
    reasons += [why_windows] if "shuffle_window" in settings.get("training", {}) else []
    too_short = [] if follows else _too_short(facts, user, length, batch)
    return Plan(
        settings=settings,
        summary=(*_summary(settings, user, chosen, whole), *too_short),
        reasons=tuple(reasons),
        images_per_second=length.images_per_second,
        facts=facts,
        candidate=chosen.name,
    )


class FirstFit(NamedTuple):
    """What the rest of a plan has to fit."""

    user: UserSettings
    """What is set, and whether the training is repeated."""
    chosen: Candidate
    length: Length
    """Of the first fit."""
    batch: int
    repeated: Settings

    @property
    def steps(self) -> int:
        """Updates of the weights in the first fit."""
        images = self.length.images_seen / max(1.0, self.length.epochs)
        return round(max(1.0, self.length.epochs) * math.ceil(images / self.batch))


def decided(
    facts: PlanFacts, user_settings: Mapping[str, Any], *, follows: bool = False
) -> FirstFit:
    """Return the model, the length and the batch of a plan, and whether its training is repeated.

    Args:
        facts: data, machine and measured speeds.
        user_settings: what the user has set, by dotted key.
        follows: whether the training starts from weights of a model of Patchline's own.
    """
    asked = UserSettings(user_settings)
    repeated = {} if follows else _repeated(facts, asked)
    user = asked.with_planned({f"training.{key}": value for key, value in repeated.items()})
    chosen, length = _chosen(facts, user)
    return FirstFit(user, chosen, length, _batch(facts, user, chosen, length), repeated)


def _batch(facts: PlanFacts, user: UserSettings, chosen: Candidate, length: Length) -> int:
    """Return the images of a step, as set or planned."""
    images = images_by_training(facts, user)[0]
    planned = recipes.batch_size(facts, chosen.tier, chosen.side, length, images)
    return user.get("training.batch_size") or max(planned, _fewest_images_of_a_batch(user))


def _repeated(facts: PlanFacts, user: UserSettings) -> Settings:
    """Return the settings that repeat the training where the validation images are few.

    Folds choose the length on all images that are not held back for the test; a refit uses the
    validation images for training too. Both only if each fit has time for the same model and for
    enough updates.
    """
    data = facts.data
    if not may_repeat(facts, user):
        return {}
    options: list[Settings] = []
    if data.choosing_images < FEW_FOR_A_CHOICE and data.can_be_folded:
        options.append({"folds": FOLDS})
    if data.choosing_images < _FEW_FOR_A_METRIC or data.is_mostly_validated:
        options.append({"refit": True})
    once, _ = _chosen(facts, user)
    for option in options:
        several = user.with_planned({f"training.{key}": value for key, value in option.items()})
        chosen, length = _chosen(facts, several)
        steps = length.images_seen / _batch(facts, several, chosen, length)
        if chosen.tier == once.tier and steps >= _STEPS_OF_A_FIT:
            return option
    return {}


def may_repeat(facts: PlanFacts, user: UserSettings) -> bool:
    """Return whether folds or a refit are possible, and left to the plan.

    Beside unlabelled images, the validation images add nothing.
    """
    data = facts.data
    possible = data.classes and data.validation_images and not data.unlabelled_images
    return bool(possible) and not any(key in user for key in _ONE_FIT)


def _fewest_images_of_a_batch(user: UserSettings) -> int:
    """Return how many images a batch needs, so that every process gets two."""
    processes = int(user.get("training.processes", 1))
    return 2 * processes if processes > 1 else 1


def candidates(facts: PlanFacts, user_settings: Mapping[str, Any]) -> list[Candidate]:
    """Return the models to choose from, the fastest first; one if the user has chosen it."""
    user = UserSettings(user_settings)
    models = _tiers(facts, user)
    if not user.leaves_model:
        return [_candidate(OWN, models[1], facts, user)]
    found = [_candidate(tier.name, tier, facts, user) for tier in models]
    return [each for each in found if each.side % (each.tier.patch_size or 1) == 0]


def _tiers(facts: PlanFacts, user: UserSettings) -> tuple[Tier, ...]:
    """Return the models to compare; those for small images need their own embedding."""
    whole = user.leaves_model and user.leaves_embedding
    return tiers_for(facts.data.median_side) if whole else TIERS


def _candidate(name: str, tier: Tier, facts: PlanFacts, user: UserSettings) -> Candidate:
    median = facts.data.median_side
    planned = image_side(tier, median) if user.leaves_embedding else default_image_size(median)
    side = user.get("data.image_size") or planned
    model: Settings = {}
    if user.leaves_model:
        sizes = {key: getattr(tier, key) for key in ("embed_dim", "depth", "num_heads", "mlp_dim")}
        model = {**user.dimensions(sizes), "pooling": "average", "residual_init": "zero"}
    if user.leaves_embedding and tier.patch_size:
        model["patch_embedding"] = {"name": "conv_stem", "patch_size": tier.patch_size}
    elif user.leaves_embedding and side >= _SMALLEST_WHITENED:
        number = halvings(side, pools_early=tier.pools_early)
        early = {"early_pooling": True} if tier.pools_early else {}
        model["patch_embedding"] = {"name": "whitened", "num_halvings": number, **early}
    mirrors = facts.data.mirror_symmetric and not tier.patch_size
    if user.leaves_model and mirrors and user.leaves_augmentation:
        keeps_no_positions = user.get("model.positions", "none") == "none"
        model |= _mirrored(model, tier) if keeps_no_positions else {"test_time_flip": True}
    if model:
        model["name"] = "vit"
    settings: Settings = {"model": model} if model else {}
    if user.leaves_embedding:  # an embedding that is set may not fit another size
        settings["data"] = {"image_size": side}
    return Candidate(name, tier, side, settings)


def _mirrored(model: Settings, tier: Tier) -> Settings:
    """Return the settings that make use of mirrored images showing the same classes."""
    embedding: Settings = model.get("patch_embedding", {})
    if not (embedding and tier.mirror_equivariant and model["embed_dim"] % 2 == 0):
        return {"test_time_flip": True}
    return {
        "positions": "none",
        "patch_embedding": {**embedding, "mirror_equivariant": True},
    }


def _why_mirrored(model: Settings, facts: PlanFacts, user: UserSettings) -> list[str]:
    if not facts.data.mirror_symmetric and facts.data.mirror and user.leaves_augmentation:
        return [f"no mirror images: {facts.data.mirror}"]
    if model.get("patch_embedding", {}).get("mirror_equivariant"):
        return [_WHY_MIRRORED]
    return [_WHY_FLIPPED] if model.get("test_time_flip") else []


def _chosen(facts: PlanFacts, user: UserSettings) -> tuple[Candidate, Length]:
    """Return the largest candidate that pays within the length, and that length."""
    options = [(each, _length(facts, each, user)) for each in candidates(facts, user.values)]
    share = share_for_classes(facts.data.classes)
    for candidate, length in reversed(options):
        scale = share if candidate.tier in PHOTOGRAPH_TIERS else 1.0
        if (
            _has_enough_images(facts, candidate)
            and length.images_per_second > 0
            and length.images_seen >= scale * candidate.tier.images_seen
        ):
            return candidate, length
    return options[0]


def _has_enough_images(facts: PlanFacts, candidate: Candidate) -> bool:
    """Return whether a model has enough different images, and enough pixels in them."""
    tier, share = candidate.tier, share_for_classes(facts.data.classes)
    scale = share if tier in PHOTOGRAPH_TIERS else 1.0
    enough = facts.data.training_images >= scale * tier.training_images
    return enough and candidate.side >= tier.image_size


def measured_first(facts: PlanFacts, options: list[Candidate]) -> list[Candidate]:
    """Return the candidates in the order in which they are measured.

    The fastest, and those that there are enough images for. On a CPU from the fastest on. A GPU
    waits for the kernels of a small model, so its speed says nothing about a large one: the largest
    comes second, the others follow from large to small.
    """
    larger = [each for each in options[1:] if _has_enough_images(facts, each)]
    if facts.machine.device != "cpu":
        larger.reverse()
    return [options[0], *larger]


def images_by_training(facts: PlanFacts, user: UserSettings) -> list[float]:
    """Return the images in an epoch of each training: one, or the folds and the last one."""
    return images_of_fits(
        max(1, facts.data.training_images),
        facts.data.validation_images,
        folds=user.get("training.folds"),
        refit=bool(user.get("training.refit")),
        ensemble=bool(user.get("training.ensemble")),
    )


def _length(facts: PlanFacts, candidate: Candidate, user: UserSettings) -> Length:
    """Return the length of the first training, which shares its time with all others."""
    fits = images_by_training(facts, user)
    images, share = fits[0], fits[0] / sum(fits)
    models = _tiers(facts, user)
    rate = tiers.images_per_second(facts, candidate.tier, models, candidate.name)
    overhead = epoch_overhead(facts, candidate.name, rate, _epoch_images(facts, user))
    length = Length(0.0, 0.0, rate, overhead)
    knots = user.get("record.step_plan")
    if knots:
        seen = knots[-1][2] * float(user.get("training.batch_size") or _STEPS_OF_A_PLAN)
    elif user.seconds:
        seconds = seconds_beside_checkpoints(facts, candidate.name, user.seconds * share)
        seen = rate * seconds * length.training_share
    elif user.get("training.epochs"):
        seen = float(user.get("training.epochs") * images)
    else:
        most = most_epochs(facts, user) * images
        seconds = facts.minutes * 60
        seconds = max(LEAST_BESIDE_TEACHER * seconds, seconds - facts.teacher_seconds)
        seconds = seconds_beside_checkpoints(facts, candidate.name, seconds * share)
        seen = min(most, rate * seconds * length.training_share)
    return replace(length, images_seen=seen, epochs=seen / images)


def _epoch_images(facts: PlanFacts, user: UserSettings) -> EpochImages:
    """Return the images of an epoch of the first fit."""
    data, first = facts.data, images_by_training(facts, user)[0]
    folds = user.get("training.folds")
    labelled = data.training_images - data.unlabelled_images + data.validation_images
    return EpochImages(first, labelled / folds if folds else data.validation_images)


def most_epochs(facts: PlanFacts, user: UserSettings) -> int:
    """Return the epochs of a fit where there is time for all of them."""
    side = user.get("data.image_size") or image_side(TIERS[0], facts.data.median_side)
    epochs = PRESETS[facts.preset].epochs
    if side < THUMBNAIL:
        epochs = max(_LEAST_FOR_THUMBNAILS, epochs // _FEWER_FOR_THUMBNAILS)
    fits = images_by_training(facts, user)
    epochs = recipes.most_epochs(epochs, fits[0], len(fits))
    epochs = max(1, int(epochs * facts.length_share + _ROUNDING))
    return int(min(epochs, user.get("training.max_epochs") or epochs))


def _is_averaged(facts: PlanFacts, user: UserSettings, chosen: Candidate, length: Length) -> bool:
    """Return whether the last weights are averaged, because few images would choose an epoch."""
    is_open = not {"training.average_last", "record.extends"} & set(user.values)
    few = facts.data.choosing_images < _FEW_TO_CHOOSE_ON
    is_small = chosen.side < THUMBNAIL or bool(facts.data.unlabelled_images)
    return is_open and few and is_small and length.epochs >= _AVERAGED_FROM


def _step_cost(facts: PlanFacts, candidate: str, training: Settings) -> float:
    """Return the mean cost of a step, as a fraction of one with images of full size.

    On a GPU nothing is counted on: a small model's steps last as long as launching their kernels,
    whatever the size of the images, and only steps of full size are measured.
    """
    if facts.machine.device == "cuda":
        return 1.0
    scale, until = training.get("initial_image_scale", 1.0), training.get("full_size_from", 0.0)
    measured = next((each for each in facts.speeds if each.candidate == candidate), None)
    smaller = measured.smaller_step_share if measured and scale == recipes.SMALLER else 0.0
    return float(1 - until * (1 - (smaller or scale**2)))


# -- in words ----------------------------------------------------------------------------------


def _summary(
    settings: Settings, user: UserSettings, chosen: Candidate, length: Length
) -> tuple[str, str]:
    def value(key: str, default: object = "default") -> Any:
        found: Any = settings
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return user.get(key, default if found is None else found)

    model = f"{value('model.name', 'vit')}"
    if user.leaves_model:
        depth = value("model.depth")
        model += f" {value('model.embed_dim')} wide, {counted(depth, 'block')}"
    embedding = value("model.patch_embedding.name", "the default")
    if user.leaves_embedding:
        patch = chosen.tier.patch_size
        halved = value("model.patch_embedding.num_halvings", 0)
        count = (chosen.side // patch) ** 2 if patch else tokens(chosen.side, halved)
        embedding = f"{embedding} ({count} tokens)"
    limit = value("training.time_limit", "")
    epochs = epochs_in_words(length.epochs)
    long = f"{limit}, about {epochs}" if limit else epochs
    recipe = (
        f"training: {long}, batch {value('training.batch_size')}, "
        f"{value('optimizer.name')} at {value('optimizer.learning_rate')}, "
        f"{value('optimizer.schedule')} schedule, "
        f"{value('augmentation.name', 'light')} augmentation"
    )
    pixels = f"{chosen.side}x{chosen.side} pixels"
    return f"model: {model}; {embedding} embedding of {pixels}", recipe


def _why_model(facts: PlanFacts, chosen: Candidate, user: UserSettings, *, follows: bool) -> str:
    data = facts.data
    unlabelled = f" ({data.unlabelled_images:,} unlabelled)" if data.unlabelled_images else ""
    known = (
        f"{data.training_images:,} training images{unlabelled} of {data.median_side} pixels in "
        f"{data.classes_in_words}"
    )
    if not user.leaves_model:
        return f"{known}: the model {'of the initial weights' if follows else 'as set'}"
    return f"{known}: the {chosen.name} model ({chosen.tier.why})"


def _why_length(
    facts: PlanFacts, chosen: Candidate, length: Length, whole: Length, user: UserSettings
) -> str:
    verb = "measured" if tiers.is_measured(facts, chosen.name) else "estimated"
    machine = facts.machine
    where = machine.computes_on
    vector = f", {machine.vector_instructions}" if machine.vector_instructions else ""
    busy = f"; other programs used {facts.busy_cores:.1f} CPU cores" * is_busy(facts)
    known = f"{verb} {number(length.images_per_second)} images/s ({where}{vector}{busy})"
    limit, epochs = user.get("training.time_limit"), epochs_in_words(whole.epochs)
    fits = images_by_training(facts, user)
    each = f" for each of {len(fits)} fits" if len(fits) > 1 else ""
    between = round(1 - whole.training_share, 2)
    is_long = between > round(1 - recipes.MOST_TRAINING_SHARE, 2)
    if limit:
        rest = f"{between:.0%} for validation and keeping weights" if is_long else "validation"
        return f"{known}: {limit}, including {rest}, is about {epochs}{each}"
    seconds = whole.seconds / whole.training_share * sum(fits) / fits[0]
    rest = f", {between:.0%} of it for validation and keeping weights" if is_long else ""
    took = f"{epochs}{each} take about {duration(seconds)}{rest}"
    return f"{known}: {took}{aim(facts, user, most_epochs(facts, user))}"


def why_repeated(facts: PlanFacts, user: UserSettings, repeated: Settings) -> list[str]:
    """Return why the training is repeated, or not in spite of many validation images.

    Args:
        facts: the numbers of images.
        user: what the user has set.
        repeated: the planned settings.
    """
    data = facts.data
    known = data.choosing_in_words
    everything = data.training_images + data.validation_images
    if not repeated and data.is_mostly_validated and may_repeat(facts, user):
        trained = f"{data.training_images:,} training images"
        return [f"{known} beside {trained}: too little time to refit on all (training.refit)"]
    if not repeated:
        return []
    why = (
        f"worth training on, so the model is trained once more on all {everything} images, for as "
        "many epochs as were best (training.refit)"
    )
    if "folds" in repeated:
        why = (
            f"too few to choose an epoch on, so {repeated['folds']} folds choose it on all "
            f"{everything} images, and the model is trained on all of them (training.folds)"
        )
    return [f"{known}: {why}"]


def _why_averaged(facts: PlanFacts) -> list[str]:
    known = facts.data.choosing_in_words
    why = "too few to choose an epoch on, so the weights of the last"
    return [f"{known}: {why} {_AVERAGED} validations are averaged (training.average_last)"]


def time_of_teacher(facts: PlanFacts, user: UserSettings) -> list[str]:
    """Return how long a teacher predicts, in a sentence; none without one."""
    if not facts.teacher_seconds:
        return []
    counts = "not part of training.time_limit" if user.seconds else "part of the preset's time"
    words = (
        f"the teacher predicts {facts.teacher_per_second:,.0f} images/s, so its predictions take "
        f"about {duration(facts.teacher_seconds)} before the training, unless they are stored "
        f"({counts})"
    )
    return [words]


def is_busy(facts: PlanFacts) -> bool:
    """Return whether other programs slowed the measurement down."""
    return facts.machine.device == "cpu" and facts.busy_cores > BUSY_CORES


def _too_short(facts: PlanFacts, user: UserSettings, length: Length, batch: int) -> list[str]:
    """Return a sentence if the weights are updated too rarely for a good model."""
    images = images_by_training(facts, user)[0]
    steps = math.ceil(images / batch) * length.epochs
    if steps >= FEWEST_STEPS or user.get("record.step_plan"):
        return []
    remedy = "a longer training.time_limit" if length_is_set(user.values) else "a longer preset"
    if user.get("training.epochs"):
        remedy = "more training.epochs"
    words = (
        f"too short: about {number(steps)} updates of the weights, but a model from random "
        f"weights needs at least {FEWEST_STEPS}: choose {remedy}, or pre-trained weights "
        "(model.init)"
    )
    return [words]
