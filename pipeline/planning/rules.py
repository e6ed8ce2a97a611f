"""The rules of a plan, in one list: when each applies, what it sets, and why.

Settings and reasons come out of one loop over the list. What the user has set is never changed, and
the rest fits it. Nothing about the accuracy of a classifier that starts from an encoder can be
planned from images without labels: there, model and recipe stay the objective's own.

From a model of Patchline's own, optimizer and learning rate are those for random weights: a smaller
rate, or AdamW at 1e-3, was behind on a tenth more images. Unless the user decides it, the length is
a third of what the preset would train from random weights, which reaches their accuracy
(benchmarks/warm_starts.py). An encoder has never seen a class: it is trained for the preset's whole
length, with a low learning rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.config_files import Settings, merge_settings
from patchline.pipeline.planning import recipes, tiers
from patchline.pipeline.planning.draft import (
    MOST_TRAINING_SHARE,
    RATE,
    SMALLER,
    Draft,
    Start,
    draft_plan,
)
from patchline.pipeline.planning.facts import Plan, PlanFacts
from patchline.pipeline.planning.published import FEATURES, STEP, Published, shorter
from patchline.pipeline.terminal_words import counted, duration, epochs_in_words
from patchline.pipeline.training.config import DEFAULT_EPOCHS
from patchline.pipeline.training.initial_weights import recipe

_WHY_FLIPPED = (
    "mirrored images show the same classes: an image is predicted together with its mirror image, "
    "which takes twice as long (test_time_flip)"
)
_WHY_MIRRORED = (
    "mirrored images show the same classes: the embedding mirrors every filter, so that an image "
    "and its mirror image get the same prediction (mirror_equivariant)"
)
_AVERAGED, _AVERAGED_FROM, _FEW_TO_CHOOSE_ON = 3, 4, 1_000
"""For thumbnails: the validations whose weights are averaged, the epochs from which
they are, and the validation images from which the best epoch is chosen instead. On the scanned
digits, 261 images chose epochs of 97.2 to 100 % test accuracy after 17 epochs, and the average of
the last three of 8 epochs had 99.0 to 99.7 % (5 seeds)."""
_FEWEST_STEPS = 100
"""Updates of the weights below which a plan says that the model will be poor; batches are chosen to
leave as many."""
BUSY_CORES = 0.5
"""CPU cores used by other programs from which a plan mentions them, and tries fewer threads."""
_CROPPED_AWAY = 0.05
"""Of an image; less is not worth another shape."""
_DEFAULTS = RunConfig()
_OWN: tuple[Start, ...] = ("random", "classifier", "encoder")
_PUBLISHED: tuple[Start, ...] = ("published",)
_ALL: tuple[Start, ...] = (*_OWN, *_PUBLISHED, "unlabelled")


class Rule(NamedTuple):
    """One decision of a plan; it is left out where the user has decided all that it sets."""

    when: Callable[[Draft], object] = lambda _: True
    """Whether the rule applies."""
    sets: Callable[[Draft], Settings] = lambda _: {}
    """Settings, nested like a config file; a rule before it wins."""
    why: Callable[[Draft], str] = lambda _: ""
    """The reason in one sentence, which may be left out."""
    starts: tuple[Start, ...] = _OWN
    """What the training may start from."""


def plan(facts: PlanFacts, user_settings: Mapping[str, Any], start: Start = "random") -> Plan:
    """Return the plan for a preset.

    Args:
        facts: data, machine and measured speeds.
        user_settings: what the user has set, by dotted key; never changed.
        start: what the training starts from.
    """
    draft = draft_plan(facts, user_settings, start)
    settings: Settings = {}
    reasons: list[str] = []
    for rule in RULES:
        if start in rule.starts and rule.when(draft):
            planned = rule.sets(draft)
            left = draft.own.without_set(planned)
            settings = merge_settings(left, settings)
            reasons += [rule.why(draft)] * (bool(left) or not planned)
    published = draft.published if start == "published" else None
    return Plan(
        settings=settings,
        summary=tuple(filter(None, _summary(draft, settings))),
        reasons=tuple(filter(None, reasons)),
        images_per_second=(published or draft.length).images_per_second,
        seconds_before=published.seconds_before if published else 0.0,
        facts=draft.facts,
        candidate="" if published else draft.chosen.name,
    )


def _is_averaged(draft: Draft) -> bool:
    """Return whether the last weights are averaged, because few images would choose an epoch."""
    data = draft.facts.data
    few = data.choosing_images < _FEW_TO_CHOOSE_ON and draft.whole.epochs >= _AVERAGED_FROM
    return few and bool(draft.chosen.side < tiers.THUMBNAIL or data.unlabelled_images)


def _loader(draft: Draft) -> tuple[int, float]:
    """Return the data-loader workers, and how many images each loads in a second.

    Of published weights, only steps of all weights load images: each image of a head is predicted
    once, and tokens are computed once too.
    """
    facts = draft.facts
    if draft.start != "published":
        speed = facts.speed_of(draft.chosen.name)
        return tiers.workers(facts.machine, speed), speed.loaded_per_second
    speed = facts.speed_of(FEATURES)
    if draft.published.trainable in ("head", "last_blocks"):
        return 0, 0.0
    rate, loaded = speed.images_per_second / STEP, speed.loaded_per_second
    return tiers.workers_for(facts.machine, rate, loaded), loaded


def _decide_measured_settings(draft: Draft) -> Settings:
    """Return the threads and the precision in which the speed was measured, unless they are set.

    They decide the last bits of the weights, so they are part of the plan, and the training
    measures nothing again. A model that was too slow to be measured has those of the largest one
    that was, from whose speed its own is estimated. Of published weights, passes without gradients
    were measured, which do not tell the precision of steps of all weights: that is left to the
    training, which measures it and remembers it.
    """
    machine, precision = draft.facts.machine, draft.facts.speed_near(draft.chosen.name).precision
    if not precision:
        return {}
    has_steps = draft.start == "published" and "all" in draft.published.trainable
    settings: Settings = {} if has_steps else {"precision": precision}
    if machine.device == "cpu":
        settings["threads"] = machine.threads
    return draft.own.without_set({"training": settings})


# -- in words ----------------------------------------------------------------------------------


def _summary(draft: Draft, settings: Settings) -> tuple[str, ...]:
    """Return the plan in two lines, and whether the training is too short."""
    user, chosen = draft.user, draft.chosen
    values = defaultdict(lambda: "default", {**flatten_settings(settings), **user.values})
    epochs, limit = epochs_in_words(draft.whole.epochs), user.get("training.time_limit")
    long = f"{limit}, about {epochs}" if limit else epochs
    if draft.start == "unlabelled":
        model = f"{user.get('model.name', _DEFAULTS.model.name)}, as set or by default"
        of = "that of the initial weights" if user.get("model.init") else model
        rate = values.get(RATE, _DEFAULTS.optimizer.learning_rate)
        name = values.get("optimizer.name", _DEFAULTS.optimizer.name)
        return f"model: {of}", f"pre-training without labels: {long}, {name} at {rate:g}"
    if draft.start == "published":
        return _of_published(draft.published, values)
    model = f"{values.get('model.name', 'vit')}"
    if user.leaves_model:
        depth = values["model.depth"]
        model += f" {values['model.embed_dim']} wide, {counted(depth, 'block')}"
    embedding = values.get("model.patch_embedding.name", "the default")
    if user.leaves_embedding:
        patch = chosen.tier.patch_size
        halved = values.get("model.patch_embedding.num_halvings", 0)
        count = (chosen.side // patch) ** 2 if patch else tiers.tokens(chosen.side, halved)
        embedding = f"{embedding} ({count} tokens)"
    training = (
        f"training: {long}, batch {values['training.batch_size']}, "
        f"{values['optimizer.name']} at {values[RATE]}, "
        f"{values['optimizer.schedule']} schedule, "
        f"{values.get('augmentation.name', 'light')} augmentation"
    )
    pixels = f"{chosen.side}x{chosen.side} pixels"
    return f"model: {model}; {embedding} embedding of {pixels}", training, _too_short(draft)


def _of_published(published: Published, values: Settings) -> tuple[str, str]:
    """Return the plan of published weights in two lines."""
    side, limit = values.get("data.image_size"), values.get("training.time_limit")
    pixels = f", for images of {side}x{side} pixels" if side else ""
    model = f"model: that of the initial weights{pixels}"
    if published.trainable == "head":
        return model, "training: the head alone, on features that are computed once"
    most = values["training.epochs"]
    long = epochs_in_words(most or DEFAULT_EPOCHS)
    if limit:
        long = limit + (f", at most {counted(most, 'epoch')}" if most else "")
    elif knots := values.get("record.step_plan"):
        long = f"{knots[-1][-1]:,} steps"
    accepted = published.accepted_error
    then = "the head, then" + f" (if its error is above {accepted:.1%})" * bool(accepted)
    first = {
        "head_then_all": f"{then} all weights",
        "last_blocks": f"{then} the last {counted(published.blocks, 'block')}",
    }.get(published.trainable, "all weights")
    rate, decay = values[RATE], values["optimizer.layer_decay"]
    return model, f"training: {first} for {long}, learning rate {rate}, layer decay {decay}"


def _too_short(draft: Draft) -> str:
    """Return a sentence if random weights are updated too rarely for a good model."""
    steps = math.ceil(draft.fits[0] / draft.batch) * draft.length.epochs
    if steps >= _FEWEST_STEPS or draft.start != "random":
        return ""
    longer = {"time_limit": "a longer training.time_limit", "epochs": "more training.epochs"}
    ends = [words for name, words in longer.items() if draft.user.get(f"training.{name}")]
    remedy = " and ".join(ends) or "a longer preset"
    return (
        f"too short: about {_number(steps)} updates of the weights, but a model from random "
        f"weights needs at least {_FEWEST_STEPS}: choose {remedy}, or pre-trained weights "
        "(model.init)"
    )


def _why_encoder(draft: Draft) -> str:
    rate = f"learning rate {draft.user.get(RATE):g}, which changes trained weights only slowly"
    rate = "the learning rate as set" if RATE in draft.own else rate
    length = "as set" if draft.user.length_is_set else f"that of the preset {draft.facts.preset}"
    return f"from an encoder: {rate}; the length is {length}"


def _why_warm(draft: Draft) -> str:
    third = f"a third of that of the preset {draft.facts.preset} for random weights"
    return f"warm start: the length is {'as set' if draft.user.length_is_set else third}"


def _why_model(draft: Draft) -> str:
    data, chosen = draft.facts.data, draft.chosen
    unlabelled = f" ({data.unlabelled_images:,} unlabelled)" if data.unlabelled_images else ""
    known = (
        f"{data.training_images:,} training images{unlabelled} of {data.median_side} pixels in "
        f"{data.classes_in_words}"
    )
    if not draft.user.leaves_model:
        of = "as set" if draft.start == "random" else "of the initial weights"
        return f"{known}: the model {of}"
    return f"{known}: the {chosen.name} model ({chosen.tier.why})"


def _why_length(draft: Draft) -> str:
    facts, user, whole, fits = draft.facts, draft.user, draft.whole, draft.fits
    machine, data = facts.machine, facts.data
    verb = "measured" if facts.speed_of(draft.chosen.name) in facts.speeds else "estimated"
    vector = f", {machine.vector_instructions}" if machine.vector_instructions else ""
    is_busy = machine.device == "cpu" and facts.busy_cores > BUSY_CORES
    busy = f"; other programs used {facts.busy_cores:.1f} CPU cores" * is_busy
    known = f"{verb} {_number(draft.length.images_per_second)} images/s"
    known += f" ({machine.computes_on}{vector}{busy})"
    known += f" on {data.training_images:,} training images" * (draft.start == "unlabelled")
    limit, epochs = user.get("training.time_limit"), epochs_in_words(whole.epochs)
    each = f" for each of {len(fits)} fits" if len(fits) > 1 else ""
    between = round(1 - whole.training_share, 2)
    is_long = between > round(1 - MOST_TRAINING_SHARE, 2)
    if limit and whole.epochs >= (user.get("training.epochs") or math.inf):
        return f"{known}: {epochs}{each} (training.epochs) end before training.time_limit {limit}"
    if limit:
        rest = f"{between:.0%} for validation and keeping weights" if is_long else "validation"
        return f"{known}: {limit}, including {rest}, is about {epochs}{each}"
    seconds = whole.seconds / whole.training_share * sum(fits) / fits[0]
    rest = f", {between:.0%} of it for validation and keeping weights" if is_long else ""
    took = f"{epochs}{each} take about {duration(seconds)}{rest}"
    if user.length_is_set:
        return f"{known}: {took}"
    warm = " for a warm start" if facts.length_share < 1 else ""
    aim = f"{facts.preset} aims at {duration(facts.minutes * 60)}{warm}"
    most = counted(draft.most_epochs, "epoch")
    return f"{known}: {took} ({aim}, at most {most}; {shorter(facts.preset)})"


def _why_repeated(draft: Draft) -> str:
    """Return why the training is repeated, or not in spite of many validation images."""
    data = draft.facts.data
    known = data.choosing_in_words
    everything = data.training_images + data.validation_images
    if folds := draft.repeated.get("folds"):
        return (
            f"{known}: too few to choose an epoch on, so {folds} folds choose it on all "
            f"{everything} images, and the model is trained on all of them (training.folds)"
        )
    if draft.repeated:
        return (
            f"{known}: worth training on, so the model is trained once more on all {everything} "
            "images, for as many epochs as were best (training.final_model)"
        )
    if not (data.is_mostly_validated and draft.may_repeat) or draft.start == "published":
        return ""
    trained = f"{data.training_images:,} training images"
    return f"{known} beside {trained}: too little time to refit on all (training.final_model)"


def _why_averaged(draft: Draft) -> str:
    known = draft.facts.data.choosing_in_words
    why = "too few to choose an epoch on, so the weights of the last"
    return f"{known}: {why} {_AVERAGED} validations are averaged (record.average_last)"


def _why_teacher(draft: Draft) -> str:
    facts = draft.facts
    return (
        f"the teacher predicts {facts.teacher_per_second:,.0f} images/s, so its predictions take "
        f"about {duration(facts.teacher_seconds)} of the time, unless they are stored"
    )


def _why_mirrored(draft: Draft) -> str:
    data, model = draft.facts.data, draft.own.without_set(draft.chosen.settings).get("model", {})
    if not data.mirror_symmetric and data.mirror and draft.user.leaves_augmentation:
        return f"no mirror images: {data.mirror}"
    if model.get("patch_embedding", {}).get("mirror_equivariant"):
        return _WHY_MIRRORED
    return _WHY_FLIPPED if model.get("test_time_flip") else ""


def _why_computed(draft: Draft) -> str:
    training = _decide_measured_settings(draft)["training"]
    threads = f" with {counted(training['threads'], 'thread')}" if "threads" in training else ""
    precision = f" in {training['precision']}" if "precision" in training else ""
    return f"computed{threads}{precision}, as in the measurement; --fresh measures again"


def _why_loss(draft: Draft) -> str:
    """Return how sets of labels are learned, and what is planned as for one label."""
    is_set = draft.own.get("training.loss")
    loss = "the asymmetric loss" if is_set == "asymmetric" else "binary cross-entropy"
    return (
        f"an image may have several labels or none: {loss} of each label{' as set' * bool(is_set)} "
        "(training.loss), and the weights with the best validation mAP; model, length and "
        "augmentation follow the rules for images with one label"
    )


def _why_squashed(draft: Draft) -> str:
    return (
        f"the middle square of an image leaves out {draft.facts.data.cropped_away:.0%} of it, and "
        "what its labels name may be there: images are squashed to a square instead (data.resize)"
    )


def _number(value: float) -> str:
    """Return a number with about two digits."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004 - two digits


RULES = (
    Rule(
        sets=lambda d: {"optimizer": {"learning_rate": d.user.get(RATE)}},
        starts=("encoder",),
    ),
    Rule(why=_why_encoder, starts=("encoder",)),
    Rule(why=_why_warm, starts=("classifier",)),
    Rule(
        lambda d: d.user.get("model.init"),
        lambda _: {"optimizer": recipe.WARM_START["optimizer"]},
        starts=("unlabelled",),
    ),
    Rule(why=lambda d: d.published.why_measured(), starts=_PUBLISHED),
    Rule(why=lambda d: d.published.why_trainable(), starts=_PUBLISHED),
    Rule(sets=lambda d: d.published.settings(), starts=_PUBLISHED),
    Rule(why=lambda d: d.published.why_no_more(), starts=_PUBLISHED),
    Rule(why=_why_model),
    Rule(sets=lambda d: d.chosen.settings),
    Rule(sets=Draft.length_settings, why=_why_length, starts=(*_OWN, "unlabelled")),
    Rule(
        sets=lambda d: d.repeated and {"training": d.repeated},
        why=_why_repeated,
        starts=("random", "published"),
    ),
    Rule(why=lambda d: d.published.why_no_blocks(), starts=_PUBLISHED),
    Rule(_is_averaged, lambda _: {"record": {"average_last": _AVERAGED}}, _why_averaged),
    Rule(lambda d: d.facts.teacher_seconds, why=_why_teacher, starts=_OWN + _PUBLISHED),
    Rule(
        lambda d: d.user.leaves_augmentation,
        lambda d: {"augmentation": recipes.augmentation(d)[0]},
        lambda d: recipes.augmentation(d)[1],
    ),
    Rule(lambda d: d.is_mixed, lambda _: {"training": {"mixup": 0.2, "cutmix": 1.0}}),
    Rule(why=_why_mirrored),
    Rule(
        lambda d: _loader(d)[0],
        lambda d: {"data": {"workers": _loader(d)[0]}},
        lambda d: tiers.why_workers(d.facts.machine, *_loader(d)),
        _ALL,
    ),
    Rule(
        lambda d: recipes.shuffle_window(d)[1],
        lambda d: {"record": {"shuffle_window": recipes.shuffle_window(d)[0]}},
        lambda d: recipes.shuffle_window(d)[1],
    ),
    Rule(
        lambda d: d.begins_smaller,
        lambda _: {"training": {"initial_image_scale": SMALLER}},
    ),
    Rule(sets=lambda d: {"optimizer": recipes.optimizer(d)}),
    Rule(sets=recipes.regularisation),
    Rule(sets=lambda d: {"training": {"batch_size": d.batch}}),
    Rule(_decide_measured_settings, _decide_measured_settings, _why_computed, _ALL),
    Rule(
        lambda d: d.facts.data.labels_per_image is not None, why=_why_loss, starts=_OWN + _PUBLISHED
    ),
    Rule(
        lambda d: d.facts.data.cropped_away >= _CROPPED_AWAY,
        lambda _: {"data": {"resize": "squash"}},
        _why_squashed,
        ("random", "published"),
    ),
)
"""In the order of the reasons."""
