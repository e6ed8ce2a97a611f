"""The rules of a plan, in one list: when each applies, and what it sets.

The settings come out of one loop over the list, and `plan.txt.j2` gives the reasons. What the user
has set is never changed, and the rest fits it. Nothing about the accuracy of a classifier that
starts from an encoder can be planned from images without labels: there, model and recipe stay the
objective's own.

From a model of Patchline's own, optimizer and learning rate are those for random weights: a smaller
rate, or AdamW at 1e-3, was behind on a tenth more images. Unless the user decides it, the length is
a third of what the preset would train from random weights, which reaches their accuracy
(benchmarks/warm_starts.py). An encoder has never seen a class: it is trained for the preset's whole
length, with a low learning rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from patchline.pipeline.config import RunConfig, dotted
from patchline.pipeline.config_files import Settings, merged
from patchline.pipeline.markdown import render_markdown
from patchline.pipeline.planning import recipes, tiers
from patchline.pipeline.planning.draft import (
    FULL_SIZE_FROM,
    RATE,
    SMALLER,
    Draft,
    Start,
    drafted,
)
from patchline.pipeline.planning.facts import SHARE_OF_EACH, Plan, PlanFacts
from patchline.pipeline.planning.published import FEATURES, STEP
from patchline.pipeline.terminal_words import counted, duration, epochs_in_words
from patchline.pipeline.training.initial_weights import recipe

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
_ALL: tuple[Start, ...] = (*_OWN, "published", "unlabelled")


class Rule(NamedTuple):
    """One decision of a plan; it is left out where the user has decided all that it sets."""

    name: str = ""
    """By which `plan.txt.j2` knows it, if it gives a reason."""
    when: Callable[[Draft], object] = lambda _: True
    """Whether it applies."""
    sets: Callable[[Draft], Settings] = lambda _: {}
    """Settings, nested like a config file; a rule before it wins."""
    starts: tuple[Start, ...] = _OWN
    """What the training may start from."""


def plan(facts: PlanFacts, user_settings: Mapping[str, Any], start: Start = "random") -> Plan:
    """Return the plan for a preset.

    Args:
        facts: data, machine and measured speeds.
        user_settings: what the user has set, by dotted key; never changed.
        start: what the training starts from.
    """
    draft = drafted(facts, user_settings, start)
    settings: Settings = {}
    told: set[str] = set()
    for rule in RULES:
        if start in rule.starts and rule.when(draft):
            planned = rule.sets(draft)
            left = draft.own.without_set(planned)
            settings = merged(left, settings)
            told |= {rule.name} if left or not planned else set()
    summary, reasons = _words(draft, settings, told)
    published = draft.published if start == "published" else None
    return Plan(
        settings=settings,
        summary=summary,
        reasons=reasons,
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


def _computed(draft: Draft) -> Settings:
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


def _words(draft: Draft, settings: Settings, told: Collection[str]) -> list[tuple[str, ...]]:
    """Return the plan in two lines, and whether the training is too short; and the reasons.

    Args:
        draft: of the plan.
        settings: that are planned.
        told: the names of the rules that have set something.
    """
    text = render_markdown(
        "plan.txt.j2",
        __package__,
        draft=draft,
        told=told,
        values=defaultdict(lambda: "default", {**dotted(settings), **draft.user.values}),
        defaults=_DEFAULTS,
        averaged=_AVERAGED,
        fewest_steps=_FEWEST_STEPS,
        busy_cores=BUSY_CORES,
        share_of_each=SHARE_OF_EACH,
        augmentation=recipes.augmentation,
        shuffle_window=recipes.shuffle_window,
        loader=_loader,
        computed=_computed,
        counted=counted,
        duration=duration,
        epochs=epochs_in_words,
        sum=sum,
    )
    parts = (part.split("\n- ")[1:] for part in f"\n{text}".split("\nwhy:"))
    return [tuple(" ".join(entry.split()) for entry in part) for part in parts]


RULES = (
    Rule(
        sets=lambda d: {"optimizer": {"learning_rate": d.user.get(RATE)}},
        starts=("encoder",),
    ),
    Rule(
        when=lambda d: d.user.get("model.init"),
        sets=lambda _: {"optimizer": recipe.WARM_START["optimizer"]},
        starts=("unlabelled",),
    ),
    Rule(sets=lambda d: d.published.settings(), starts=("published",)),
    Rule(sets=lambda d: d.chosen.settings),
    Rule("length", sets=Draft.length_settings, starts=(*_OWN, "unlabelled")),
    Rule(
        "repeated",
        sets=lambda d: d.repeated and {"training": d.repeated},
        starts=("random", "published"),
    ),
    Rule("averaged", _is_averaged, lambda _: {"training": {"average_last": _AVERAGED}}),
    Rule(
        "augmentation",
        lambda d: d.user.leaves_augmentation,
        lambda d: {"augmentation": recipes.augmentation(d)[0]},
    ),
    Rule(when=lambda d: d.is_mixed, sets=lambda _: {"training": {"mixup": 0.2, "cutmix": 1.0}}),
    Rule(
        "workers",
        lambda d: _loader(d)[0],
        lambda d: {"data": {"workers": _loader(d)[0]}},
        _ALL,
    ),
    Rule(
        "windows",
        lambda d: recipes.shuffle_window(d)[1],
        lambda d: {"training": {"shuffle_window": recipes.shuffle_window(d)[0]}},
    ),
    Rule(
        when=lambda d: d.begins_smaller,
        sets=lambda _: {
            "training": {"initial_image_scale": SMALLER, "full_size_from": FULL_SIZE_FROM}
        },
    ),
    Rule(sets=lambda d: {"optimizer": recipes.optimizer(d)}),
    Rule(sets=recipes.regularisation),
    Rule(sets=lambda d: {"training": {"batch_size": d.batch}}),
    Rule("computed", _computed, _computed, _ALL),
    Rule(
        "squashed",
        lambda d: d.facts.data.cropped_away >= _CROPPED_AWAY,
        lambda _: {"data": {"resize": "squash"}},
        ("random", "published"),
    ),
)
"""A rule before another wins."""
