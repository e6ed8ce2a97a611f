"""Choose between random weights and those at hand, for a user who sets neither model nor weights.

Trained weights win if their features can be computed in the time, and if more than a head can be
trained on them, or the images are so few that a head alone is better than a network from scratch.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, SeenBefore
from patchline.pipeline.errors import ConfigError, PluginError, WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import DataFacts, PlanFacts, Speed, UserSettings
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.published import FEATURES, Published, size_of_weights
from patchline.pipeline.terminal_words import counted, duration
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.initial_weights import local_weights
from patchline.pipeline.training.initial_weights.local_weights import WeightsAtHand, WeightsSearch
from patchline.pipeline.training.initial_weights.record import (
    read_stored_provenance,
    weights_folder,
)
from patchline.pipeline.training.initial_weights.starting_point import (
    StartingPoint,
    find_starting_point,
)

FEWEST_PIXELS = 32
"""Median side of images in which the features of photographs find something."""
_PHOTOGRAPH = 64
_FEW_FOR_A_CLASS = 300
"""Training images of a class below which a head on frozen features is ahead of a network from
scratch. With 490 of each of five flowers they were level: 78.5% and 79.0%."""
_FEW = 20_000
"""Training images up to which a plan says that weights would help."""
_MOST_TRIED, _CHANNELS = 3, 3
_TIMES_MORE, _DIGESTS_OF_AN_IMAGE = 5, 2
"""How many times the run's training images a registered version was trained on. 25,000 images of
other classes brought 10 points with 500 (docs/reference/performance.md, "Pre-training on other
classes"). Of each image, the digests of its file and of its pixels are recorded."""
_FLOPS_OF_A_THREAD = 5e11
"""More than any CPU core computes; what would take too long even so is not measured."""
SUITABLE = (
    *("training.time_limit", "training.folds", "training.final_model", "training.trainable"),
    *("training.class_balance", "training.device", "training.threads"),
    *("training.precision", "training.processes", "training.compile", "data.image_size"),
    *("data.workers", "model.download"),
)
"""Settings of the user that mean the same with trained weights."""
_OF_MORE_THAN_A_HEAD = (
    *("training.epochs", "training.batch_size", "training.last_blocks"),
    *("optimizer.learning_rate", "optimizer.layer_decay", "optimizer.weight_decay"),
)
"""Settings of the user that all weights and the last blocks are trained with, and a head alone is
not. Any other asks for a network that is trained from scratch."""
_TO_FETCH = {
    True: "timm:vit_base_patch16_clip_224.openai",
    False: "torchvision:ViT_B_16_Weights.IMAGENET1K_V1",
}
"""Whether timm is installed, and what to fetch."""
_BYTES_OF_A_PARAMETER = 8
"""As it is read and in the model, in float32: enough for features. What training needs besides is
weighed with the memory that was measured."""
_SHARE_FOR_FEATURES = 1 / 3
"""Of the time; where they take more, a smaller model is tried too."""


class WeightsChoice(FrozenModel):
    """Which weights a run starts from, and why."""

    reference: str = ""
    """Name of the weights, as in `model.init`; empty for random weights."""
    stamp: str = ""
    """Text that changes with the file of the weights, and therefore decides the plan too."""
    measurement: Measurement | None = None
    """The speed of computing features; None for random weights, which are measured when they are
    planned."""
    reasons: tuple[str, ...] = ()
    measured: bool = True
    """Whether all weights that were tried could be measured, so that a later run may take the
    choice."""


class _Declined(NamedTuple):
    """Weights that are not taken."""

    why: str
    failed: bool = False
    """Whether that says nothing about them, because the process that weighs them failed."""


class Weighed(NamedTuple):
    """The outcome for one file."""

    wins: bool
    features: float
    """Time that computing the features takes, in seconds."""
    why: str


class WeightsRequest(NamedTuple):
    """A run that may start from weights at hand."""

    config: RunConfig
    """The run's settings, with a preset and without initial weights."""
    data: IngestedData
    facts: PlanFacts
    """The facts of the plan, without speeds."""
    settings: Mapping[str, Any]
    """What the user has set, by dotted key."""


Measure = Callable[[RunConfig], Measurement]
"""Measures how many images pass through the model of a config in a second, without gradients."""


def suits(data: DataFacts) -> bool:
    """Return whether the images are such that trained weights may help."""
    return bool(data.classes) and not data.greyscale and data.median_side >= FEWEST_PIXELS


def weigh(facts: PlanFacts, user_settings: Mapping[str, Any], images_per_second: float) -> Weighed:
    """Return whether trained weights win against random ones, and why.

    Args:
        facts: the facts about data, machine and preset.
        user_settings: what the user has set, by dotted key.
        images_per_second: images whose features one process computes in a second.
    """
    speed = Speed(candidate=FEATURES, images_per_second=images_per_second)
    started = Published(facts.model_copy(update={"speeds": (speed,)}), UserSettings(user_settings))
    data, features = facts.data, started.feature_seconds
    took = f"the features of {data.images:,} images take about {duration(features)}"
    without = f" ({dropped})" if (dropped := started.why_no_blocks()) else ""
    number, unused = data.images_per_class, _among(user_settings, _OF_MORE_THAN_A_HEAD)
    few = f"and with {number:,.0f} training images per {data.class_word} a head on them is"
    rules = (
        (
            features > started.seconds,
            False,
            f"more than the {duration(started.seconds)} that there are",
        ),
        (
            started.trainable != "head",
            True,
            "and there are images and time to train more than the head",
        ),
        (
            unused,
            False,
            (
                f"and no more than a head would be fitted on them, which ignores {unused}"
                f"{without}: "
                f"leave that out to use them, or set model.init{_what_they_bring(data)}"
            ),
        ),
        (number < _FEW_FOR_A_CLASS, True, f"{few} better than a network from scratch"),
        (True, False, f"{few} no better than a network from scratch{without}"),
    )
    wins, why = next((wins, why) for applies, wins, why in rules if applies)
    return Weighed(wins, features, f"{took}, {why}")


def choose(
    request: WeightsRequest,
    workspace: Path,
    measure: Measure,
    is_late: Callable[[], bool] = lambda: False,
) -> WeightsChoice:
    """Return the weights that a run starts from.

    Args:
        request: the run, without initial weights.
        workspace: the folder `.patchline`.
        measure: measures the speed of features.
        is_late: returns whether the time for planning is over; then no more weights are tried.
    """
    facts, settings = request.facts, request.settings
    there = local_weights.search(request.config.name or request.data.name)
    if not (there.weights or there.registered):
        return WeightsChoice(reasons=(*_what_would_help(facts.data), *there.passed))
    if asked := _needs_scratch(settings):
        name = there.weights[0].reference if there.weights else there.registered[0]
        why = f"weights at hand are not used, because {asked} is set: --model.init {name} uses them"
        return WeightsChoice(reasons=(f"{why}{_what_they_bring(facts.data)}",))
    available = Published(facts, UserSettings(settings)).seconds
    worth_trying = _worth_trying(there, facts, available)
    if there.weights and not worth_trying and not there.registered:
        smallest = there.weights[-1].reference
        why = f"weights at hand are not used: even {smallest} is too large for the time or memory"
        return WeightsChoice(reasons=(why,))
    won: list[tuple[Weighed, WeightsChoice]] = []
    lost: list[str] = []
    measured = True
    for number, weights in enumerate(worth_trying):
        if number and is_late():
            break
        outcome = _try_weights(request, weights, workspace, measure)
        if isinstance(outcome, _Declined):
            lost.append(outcome.why)
            measured = measured and not outcome.failed
            continue
        won.append(outcome)
        if outcome[0].features <= _SHARE_FOR_FEATURES * available:
            break
    if won:
        choice = min(won, key=lambda each: each[0].features)[1]
    elif own := _find_registered(request, there, workspace, lost):
        choice = own
    else:
        without = () if there.weights else _what_would_help(facts.data)
        choice = WeightsChoice(reasons=(*lost, *without, *there.passed))
    return choice.model_copy(update={"measured": measured})


def _try_weights(
    request: WeightsRequest, weights: WeightsAtHand, workspace: Path, measure: Measure
) -> tuple[Weighed, WeightsChoice] | _Declined:
    """Return the choice of a file, or why it is not taken."""
    try:
        start = _start(request, weights.reference, workspace)
        if known := _why_known(weights.reference, start.seen_before):
            return _Declined(known)
        measurement = measure(start.config)
    except WorkerError as error:
        why = f"{weights.reference} could not be measured, which the next run tries again: {error}"
        return _Declined(why, failed=True)
    except (ConfigError, PluginError) as error:
        return _Declined(f"{weights.reference} cannot be used: {error}")
    speed = measurement.speeds[0].images_per_second
    facts = measurement.added_to(request.facts).model_copy(update=size_of_weights(start.config))
    weighed = weigh(facts, request.settings, speed)
    if not weighed.wins:
        return _Declined(f"random weights, not {weights.reference}: {weighed.why}")
    choice = WeightsChoice(
        reference=weights.reference,
        stamp=weights.stamp,
        measurement=measurement,
        reasons=(_why_chosen(weights, start, weighed),),
    )
    return weighed, choice


def _start(request: WeightsRequest, reference: str, workspace: Path) -> StartingPoint:
    """Find weights as for `model.init`, and return the settings that follow them."""
    config, data = request.config, request.data
    named = with_changes(config, model={"init": reference})
    return find_starting_point(named, data.name, workspace, data.manifest_file, data.classes)


def _find_registered(
    request: WeightsRequest, there: WeightsSearch, workspace: Path, lost: list[str]
) -> WeightsChoice | None:
    """Return a registered version that was trained on many more images, if there is one.

    Everything that it has seen has to be recorded.

    Args:
        request: the run.
        there: the weights at hand, with the registered versions.
        workspace: the folder `.patchline`.
        lost: receives the reason where a version has seen images that the run is measured with.
    """
    data = request.facts.data
    if data.images_per_class >= _FEW_FOR_A_CLASS:
        return None
    for reference in there.registered:
        try:
            start = _start(request, reference, workspace)
        except (ConfigError, PluginError):  # an ensemble, or a model of a plugin that is not here
            continue
        found, seen = start.weights, start.seen_before
        if known := _why_known(reference, seen):
            lost.append(known)
            continue
        if found is None or not seen.provenance.is_known:
            continue
        suitable = found.channels == _CHANNELS and found.image_size <= data.median_side
        recorded = read_stored_provenance(weights_folder(workspace, found.sha256)).images
        images = len(recorded.trained_N) // _DIGESTS_OF_AN_IMAGE
        if suitable and images >= _TIMES_MORE * data.training_images:
            why = (
                f"starts from {reference} (registered here, trained on about {images:,} images): "
                f"with {data.images_per_class:,.0f} training images per {data.class_word}, its "
                "features are better than random ones; --model.init none starts from random weights"
            )
            return WeightsChoice(reference=reference, stamp=found.sha256, reasons=(why,))
    return None


def _why_known(reference: str, before: SeenBefore) -> str:
    """Return why weights that know images of this run are not taken; empty if they know none.

    Whoever names such weights is told how many there are. A plan has others to choose from, whose
    metrics are not optimistic.
    """
    images = sum(before.counts.values()) + before.related
    if not images:
        return ""
    known = counted(images, "validation or test image")
    groups = ", or others of their groups" if before.related else ""
    return (
        f"{reference} is not used: its weights have seen {known} of this run{groups}, so the "
        f"metrics would be optimistic; --model.init {reference} uses it"
    )


def _worth_trying(there: WeightsSearch, facts: PlanFacts, available: float) -> list[WeightsAtHand]:
    """Return the largest files that may fit into the seconds and the memory."""
    machine, every = facts.machine, facts.data.images
    flops = _FLOPS_OF_A_THREAD * machine.threads if machine.device == "cpu" else math.inf
    memory = machine.memory_gib * 2**30
    return [
        weights
        for weights in there.weights
        if weights.channels == _CHANNELS
        and every * 2 * weights.macs / flops <= available
        and weights.parameters * _BYTES_OF_A_PARAMETER <= memory
    ][:_MOST_TRIED]


def _needs_scratch(user_settings: Mapping[str, Any]) -> str:
    """Return the settings that ask for a network from scratch, if there are any."""
    suitable = {*SUITABLE, *_OF_MORE_THAN_A_HEAD}
    if user_settings.get("training.final_model") == "ensemble":  # of networks, not of heads
        suitable -= {"training.final_model"}
    keys = [key for key in user_settings if key not in suitable and not key.startswith("data.")]
    return _among(user_settings, keys)


def _among(user_settings: Mapping[str, Any], keys: Collection[str]) -> str:
    """Return the settings that are among some, in words."""
    return ", ".join(key for key in sorted(user_settings) if key in keys)


# -- in words ----------------------------------------------------------------------------------


def _why_chosen(weights: WeightsAtHand, start: StartingPoint, weighed: Weighed) -> str:
    """Return why weights were chosen, what is known about them, and how to decline."""
    found = start.weights
    layout, licensed = "", "license not stated"
    if found is not None:
        layout = f"{found.layout}, "
        licensed = f"license {found.license}" if found.license else licensed
    return (
        f"starts from {weights.reference} ({layout}{licensed}, from {weights.where}): "
        f"{weighed.why}; --model.init none starts from random weights"
    )


def are_few_photographs(images: int, median_side: float) -> bool:
    """Return whether images are so few and so large that trained weights help most.

    Args:
        images: number of training images.
        median_side: median of the images' shorter sides, in pixels.
    """
    return median_side >= _PHOTOGRAPH and images <= _FEW


def _what_they_bring(data: DataFacts) -> str:
    """Return a warning that belongs to a reason for random weights; empty with many images."""
    return ". Few photographs gain most from them" * are_few_photographs(
        data.training_images, data.median_side
    )


def _what_would_help(data: DataFacts) -> list[str]:
    """Return what weights usually bring, if the images are few photographs."""
    if not are_few_photographs(data.training_images, data.median_side):
        return []
    why = "no pre-trained weights are at hand, which few photographs gain most from"
    return [f"{why}: add --model.init {weights_to_fetch()} --download"]


def weights_to_fetch() -> str:
    """Return the published weights that would help, as in `model.init`."""
    return _TO_FETCH[importlib.util.find_spec("timm") is not None]
