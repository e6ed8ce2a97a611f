"""What a plan decides first: the model, how long it is trained, and the images of a step.

Speeds are measured once, and the number of steps follows from them and stays in the plan. So a run
that is resumed or repeated does the same steps, whatever else the machine does meanwhile; only a
time limit that the user sets follows the clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from patchline.pipeline.config_files import Settings
from patchline.pipeline.data.image_size import default_image_size
from patchline.pipeline.planning import tiers
from patchline.pipeline.planning.facts import PlanFacts, UserSettings
from patchline.pipeline.planning.published import Published
from patchline.pipeline.planning.tiers import (
    LARGEST_UNSHRUNK,
    OWN,
    THUMBNAIL,
    TIERS,
    Tier,
    activations,
    halvings,
    image_side,
    share_for_classes,
    tiers_for,
)
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.training.config import FULL_SIZE_FROM, TrainingConfig
from patchline.pipeline.training.initial_weights import recipe

Start = Literal["random", "classifier", "encoder", "published", "unlabelled"]
"""What the training starts from: random weights; all weights of a model of Patchline's own, with or
without classes; the features of other weights; or, without labels, any weights."""
RATE = "optimizer.learning_rate"
MOST_TRAINING_SHARE = 0.9
"""Of the time, for training steps. Validations take at most the rest, as with a time limit."""
_VALIDATION_TO_STEPS = 1 / MOST_TRAINING_SHARE - 1
"""What all validations take at most, as a multiple of the steps."""
_TRAINING_TO_VALIDATION = 3
"""Cost of a training image in validation images, as the clock of a time limit assumes too."""
_FIRST_AND_LAST, _CHECKPOINT_PAUSE, _CHECKPOINT_SHARE = 2, 15.0, 0.05
"""Checkpoints of every fit, after its first validation and at its end; and the seconds between
others, whose share of the time is limited, as `training.checkpoints` decides."""
_VALIDATIONS, _FEWEST_VALIDATED = 6, 64
"""Of a run whose validation split is too large to be validated after each epoch."""
_WHOLE_EPOCHS = 10
"""From here on, rounding down to whole epochs changes the length by less than a tenth."""
_ROUNDING = 1e-6
_QUARTERS = (4, 5, 6, 7)
_BATCHES = (*(number << octave for octave in range(2, 6) for number in _QUARTERS), 256)
"""Four for each factor of two, so that a few images more change a batch only a little."""
_BATCHES_ACCELERATOR = (*_BATCHES, 512, 1024)
_STEPS_PER_EPOCH, _STEPS = 23, 100
"""Fewest: Muon needs updates more than it needs exact gradients."""
_STEPS_FOR_LARGE_BATCH = 5_000
REFERENCE_BATCH = 256
_MEMORY_SHARE, _MEMORY_SHARE_ACCELERATOR, _BYTES = 0.25, 0.6, 4
"""Of the memory, for what a step keeps until its backward pass, in float32."""
_STEPS_FOR_EPOCH, _FEWER_IN_FOLDS, _FITS_OF_A_REFIT = 30, 2, 2
"""Updates for each epoch of a preset that few images have at least, by more epochs."""
_FEWER_FOR_THUMBNAILS, _LEAST_FOR_THUMBNAILS = 7, 5
"""Thumbnails take this fraction of a preset's epochs (1/7), and at least so many."""
_FEWER_FROM_WEIGHTS = 3
"""Continued pre-training takes a third of the epochs, as a warm start does."""
FOLDS = 5
FEW_FOR_A_CHOICE, _FEW_FOR_A_METRIC = 50, 150
"""Validation images below which a run takes folds or a refit: one image of 50 is 2 points, more
than the epochs between which the validation chooses differ."""
_STEPS_OF_A_FIT = 400
"""Updates that each of several fits needs; with fewer, one longer fit is better."""
_ONE_FIT = (
    *("training.folds", "training.final_model", "record.average_last"),
    *("training.epochs", "training.early_stopping"),
)
"""Settings of the user with which the plan does not repeat the training."""
_SIZES_OF_A_TIER = {
    "embed_dim": "model.embed_dim",
    "depth": "model.depth",
    "photo_size": "data.image_size",
}
"""Settings of the user that decide how fast every tier is."""
_SMALLEST_WHITENED, PLAIN_SIDE = 5, 24
SMALLER = 0.75
STRONGER_EPOCHS, STRONGEST_EPOCHS = 8, 30
"""Passes over the images from which they are worth disguising more."""
_STRONGEST_EPOCHS_PHOTOGRAPH = 150
"""The same for photographs. Mixed images were 1.4 points behind after 27 passes over 2,829 of them,
and 1.0 after 143; where they begin to pay is an estimate, within the reach of the preset best."""
_STRONGER_EPOCHS_EARLY, _STRONGEST_EPOCHS_EARLY = 60, 120
"""The same for small images, where trivialaugment after 38 epochs was behind simple augmentation
after 17 (docs/reference/cifar10.md, "Early pooling")."""


@dataclass(frozen=True)
class Candidate:
    """A model that could be trained, with the settings to measure it with."""

    name: str
    tier: Tier
    side: int
    settings: Settings


@dataclass(frozen=True)
class Length:
    """How long the training is."""

    images_seen: float
    epochs: float
    images_per_second: float
    overhead: float = 0.0
    """What an epoch takes beside its steps, as a multiple of these."""

    @property
    def seconds(self) -> float:
        """Estimated seconds of training steps."""
        return self.images_seen / self.images_per_second

    @property
    def training_share(self) -> float:
        """Share of the steps in the time; a tenth is reserved for the rest at least."""
        return min(MOST_TRAINING_SHARE, 1 / (1 + self.overhead))


@dataclass(frozen=True)
class Draft:
    """What the rules of a plan go by: facts, settings of the user, and what is decided first."""

    facts: PlanFacts
    own: UserSettings
    """What the user has set."""
    start: Start = "random"
    repeated: Settings = field(default_factory=dict)
    """Planned settings of the training that repeat it."""

    @cached_property
    def user(self) -> UserSettings:
        """What is set, with what the rest of the plan has to fit."""
        planned = {f"training.{key}": value for key, value in self.repeated.items()}
        if self.start == "encoder":
            planned = {RATE: recipe.WARM_START["optimizer"]["learning_rate"]}
        return UserSettings({**planned, **self.own.values})

    @cached_property
    def fits(self) -> list[float]:
        """The images in an epoch of each training: one, or the folds and the last one."""
        return self.user.fits(self.facts.data)

    @cached_property
    def published(self) -> Published:
        """The training of published weights, from what the user has set."""
        return Published(self.facts, self.own)

    def repetitions(self) -> Iterator[Draft]:
        """Yield the plan with what repeats the training where the validation images are few.

        Folds choose the length on all images that are not held back for the test; a refit uses the
        validation images for training too.
        """
        data, many = self.facts.data, self.facts.data.is_mostly_validated
        if not self.may_repeat:
            return
        if self.start == "published":
            many = many and self.published.trainable == "head"
        elif data.choosing_images < FEW_FOR_A_CHOICE and data.can_be_folded:
            yield replace(self, repeated={"folds": FOLDS})
        if many or (self.start == "random" and data.choosing_images < _FEW_FOR_A_METRIC):
            yield replace(self, repeated={"final_model": "refit"})

    @property
    def may_repeat(self) -> bool:
        """Whether folds or a refit are possible, and left to the plan.

        Beside unlabelled images, the validation images add nothing.
        """
        data = self.facts.data
        possible = data.classes and data.validation_images and not data.unlabelled_images
        is_open = self.start in ("random", "published") and not any(
            key in self.own for key in _ONE_FIT
        )
        return bool(possible) and is_open

    # -- the model -----------------------------------------------------------------------------

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """The models to compare, of the sizes that are set; some need their own embedding."""
        whole = self.user.leaves_model and self.user.leaves_embedding
        labelled = self.start != "unlabelled"
        found = tiers_for(self.facts.data.median_side) if whole and labelled else TIERS
        sizes = {
            name: self.user.get(key)
            for name, key in _SIZES_OF_A_TIER.items()
            if self.user.leaves_model and self.user.get(key)
        }
        return tuple(replace(tier, **sizes) for tier in found)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The models to choose from, the fastest first; one if the user has chosen it."""
        if self.start == "unlabelled" or not self.user.leaves_model:
            return [self._candidate(OWN, self.tiers[1])]
        models = [self._candidate(tier.name, tier) for tier in self.tiers]
        return [each for each in models if each.side % (each.tier.patch_size or 1) == 0]

    def _candidate(self, name: str, tier: Tier) -> Candidate:
        user, median = self.user, self.facts.data.median_side
        planned = image_side(tier, median) if user.leaves_embedding else default_image_size(median)
        side = user.get("data.image_size") or planned
        model: Settings = {}
        if user.leaves_model:
            keys = ("embed_dim", "depth", "num_heads", "mlp_dim")
            sizes = user.dimensions({key: getattr(tier, key) for key in keys})
            model = {**sizes, "pooling": "average", "residual_init": "zero"}
        if user.leaves_embedding and tier.patch_size:
            model["patch_embedding"] = {"name": "conv_stem", "patch_size": tier.patch_size}
        elif user.leaves_embedding and side >= _SMALLEST_WHITENED:
            number = halvings(side, pools_early=tier.pools_early)
            early = {"early_pooling": True} if tier.pools_early else {}
            model["patch_embedding"] = {"name": "whitened", "num_halvings": number, **early}
        mirrors = self.facts.data.mirror_symmetric and not tier.patch_size
        if user.leaves_model and mirrors and user.leaves_augmentation:
            model |= self._mirrored(model, tier)
        if model:
            model["name"] = "vit"
        settings: Settings = {"model": model} if model else {}
        if user.leaves_embedding:  # an embedding that is set may not fit another size
            settings["data"] = {"image_size": side}
        return Candidate(name, tier, side, settings)

    def _mirrored(self, model: Settings, tier: Tier) -> Settings:
        """Return the settings that make use of mirrored images showing the same classes."""
        embedding: Settings = model.get("patch_embedding", {})
        keeps_no_positions = self.user.get("model.positions", "none") == "none"
        is_even = tier.mirror_equivariant and model["embed_dim"] % 2 == 0
        if not (embedding and is_even and keeps_no_positions):
            return {"test_time_flip": True}
        return {"positions": "none", "patch_embedding": {**embedding, "mirror_equivariant": True}}

    @cached_property
    def chosen(self) -> Candidate:
        """The largest candidate that pays within the length."""
        for candidate in reversed(self.candidates):
            length, least = self.length_of(candidate), self._share(candidate)
            enough = length.images_seen >= least * candidate.tier.images_seen
            if self._has_enough_images(candidate) and length.images_per_second > 0 and enough:
                return candidate
        return self.candidates[0]

    def _share(self, candidate: Candidate) -> float:
        """Return which share of a tier's numbers of images is enough."""
        tier = candidate.tier
        is_share = self.are_photographs and (tier.pools_early or tier.patch_size)
        return share_for_classes(self.facts.data.classes) if is_share else 1.0

    def _has_enough_images(self, candidate: Candidate) -> bool:
        """Return whether a model has enough different images, and enough pixels in them."""
        least = self._share(candidate) * candidate.tier.training_images
        enough = self.facts.data.training_images >= least
        return enough and candidate.side >= candidate.tier.image_size

    @property
    def measured_first(self) -> list[Candidate]:
        """The candidates in the order in which they are measured.

        The fastest, and those that there are enough images for. On a CPU from the fastest on. A GPU
        waits for the kernels of a small model, so its speed says nothing about a large one: the
        largest comes second, the others follow from large to small.
        """
        first, *others = self.candidates
        larger = [each for each in others if self._has_enough_images(each)]
        return [first, *(larger if self.facts.machine.device == "cpu" else reversed(larger))]

    # -- the length ----------------------------------------------------------------------------

    @cached_property
    def most_epochs(self) -> int:
        """Epochs of a fit where there is time for all of them.

        There are more where images are so few that there were few updates; with folds, each fit
        makes half as many.
        """
        user, epochs, images = self.user, PRESETS[self.facts.preset].epochs, self.fits[0]
        if self.start == "unlabelled":
            epochs = epochs // _FEWER_FROM_WEIGHTS if user.get("model.init") else epochs
        else:
            median = self.facts.data.median_side
            if (user.get("data.image_size") or image_side(TIERS[0], median)) < THUMBNAIL:
                epochs = max(_LEAST_FOR_THUMBNAILS, epochs // _FEWER_FOR_THUMBNAILS)
            fewer = _FEWER_IN_FOLDS if len(self.fits) > _FITS_OF_A_REFIT else 1
            steps = _STEPS_FOR_EPOCH * epochs / fewer
            epochs = max(epochs, math.ceil(steps / math.ceil(images / batch_of_images(images))))
            epochs = max(1, int(epochs * self.facts.length_share + _ROUNDING))
        return epochs

    def length_of(self, candidate: Candidate) -> Length:
        """Return the length of the first training, which shares its time with all others.

        Args:
            candidate: the candidate that is trained.
        """
        facts, user, images = self.facts, self.user, self.fits[0]
        rate = tiers.images_per_second(facts, candidate.tier, self.tiers, candidate.name)
        length = Length(0.0, 0.0, rate, self._overhead(candidate.name, rate))
        seconds = facts.training_seconds(user.seconds or facts.minutes * 60)
        seconds *= images / sum(self.fits)
        each = facts.speed_near(candidate.name).checkpoint_seconds
        written = min(_CHECKPOINT_SHARE, each / _CHECKPOINT_PAUSE) * seconds
        seconds = max(seconds / 2, seconds - _FIRST_AND_LAST * each - written)
        seen = rate * seconds * length.training_share
        if user.epochs:
            seen = float(user.epochs * images)
        else:
            most = user.get("training.epochs") if user.seconds else self.most_epochs
            seen = min((most or math.inf) * images, seen)
        return replace(length, images_seen=seen, epochs=seen / images)

    def _overhead(self, name: str, rate: float) -> float:
        """Return what an epoch takes beside its steps, as a multiple of these.

        That is its validation, and then keeping the weights and a copy of the state. Where
        validations would take more than a tenth of the time, there are fewer of them.

        Args:
            name: the candidate whose end of an epoch counts; if it was not measured, the largest
                measured one.
            rate: training images in a second.
        """
        facts, data, folds = self.facts, self.facts.data, self.user.get("training.folds")
        labelled = data.training_images - data.unlabelled_images + data.validation_images
        images = labelled / folds if folds else data.validation_images
        if not (images and rate):
            return 0.0
        of_one = facts.speed_of(name).validated_per_second
        validated = facts.machine.times_as_fast * of_one or _TRAINING_TO_VALIDATION * rate
        steps, validation = self.fits[0] / rate, images / validated
        validations = min(1.0, _VALIDATION_TO_STEPS * steps / validation)
        return validations * (validation + facts.speed_near(name).epoch_end_seconds) / steps

    @cached_property
    def length(self) -> Length:
        """The length of the first training at the measured cost."""
        return self.length_of(self.chosen)

    @cached_property
    def whole(self) -> Length:
        """The length, in which a step may cost less than a measured one.

        A number of epochs that is set stays, and takes less time; a time limit has no other
        maximum. On a GPU nothing is counted on: a small model's steps last as long as launching
        their kernels, whatever the size of the images, and only steps of full size are measured.
        """
        length, cost = self.length, 1.0
        if self.begins_smaller and self.facts.machine.device != "cuda":
            share = self.facts.speed_of(self.chosen.name).smaller_step_share or SMALLER**2
            cost = 1 - FULL_SIZE_FROM * (1 - share)
        rate = length.images_per_second / cost
        shorter = replace(length, images_per_second=rate, overhead=length.overhead / cost)
        epochs = length.epochs * shorter.training_share / (length.training_share * cost)
        if not self.user.length_is_set:
            epochs = min(float(self.most_epochs), epochs)
        elif most := self.user.get("training.epochs"):
            epochs = min(float(most), epochs) if self.user.seconds else length.epochs
        return replace(shorter, images_seen=epochs * self.fits[0], epochs=epochs)

    def length_settings(self) -> Settings:
        """Return whole epochs, or the steps that fit into the time, unless the length is set."""
        length, split = self.whole, self.facts.data.validation_images
        if self.user.length_is_set:
            return {}
        steps = max(1, round(length.images_seen / self.batch))
        budget = length.images_seen * _TRAINING_TO_VALIDATION * _VALIDATION_TO_STEPS
        each = min(split, max(_FEWEST_VALIDATED, int(budget / _VALIDATIONS)))
        if length.epochs >= 1 and math.ceil(length.epochs) * split <= budget:
            each = 0  # there is time for a validation after each epoch
        if length.epochs >= min(self.most_epochs, _WHOLE_EPOCHS) and not each:
            return {"training": {"epochs": max(1, int(length.epochs + _ROUNDING))}}
        shares = range(1, _VALIDATIONS + 1)
        at = sorted({max(1, round(steps * share / _VALIDATIONS)) for share in shares})
        parts = {"validation_plan": [[step, each] for step in at]} if each else {}
        return {"record": {"step_plan": [[0, 0.0, steps]], **parts}}

    @cached_property
    def batch(self) -> int:
        """Images of a step, as set or planned: most with enough steps, overall and in an epoch."""
        machine, seen, get = self.facts.machine, self.length.images_seen, self.user.get
        if get("training.batch_size") or self.start == "unlabelled":
            return int(get("training.batch_size") or TrainingConfig().batch_size)
        accelerator = machine.device == "cuda"
        share = _MEMORY_SHARE_ACCELERATOR if accelerator else _MEMORY_SHARE
        memory = (machine.processes if accelerator else 1) * machine.memory_gib * 2**30 * share
        fitting = [
            batch
            for batch in (_BATCHES_ACCELERATOR if accelerator else _BATCHES)
            if self.fits[0] >= batch * _STEPS_PER_EPOCH
            and seen >= batch * _STEPS
            and batch * _BYTES * activations(self.chosen.tier, self.chosen.side) <= memory
            and (batch <= REFERENCE_BATCH or seen >= batch * _STEPS_FOR_LARGE_BATCH)
        ]
        processes = int(get("training.processes", 1))  # each of which gets two
        return max(*fitting, _BATCHES[0], 2 * processes if processes > 1 else 1)

    # -- how much the images are changed -------------------------------------------------------

    @property
    def are_photographs(self) -> bool:
        """Whether the images are so large that they are shrunk."""
        return self.facts.data.median_side > LARGEST_UNSHRUNK

    @cached_property
    def disguised_from(self) -> tuple[int, int]:
        """Passes over the images from which strong and strongest augmentation pay."""
        if not self.chosen.tier.pools_early:
            return STRONGER_EPOCHS, STRONGEST_EPOCHS
        if self.are_photographs:
            return STRONGER_EPOCHS, _STRONGEST_EPOCHS_PHOTOGRAPH
        return _STRONGER_EPOCHS_EARLY, _STRONGEST_EPOCHS_EARLY

    @property
    def is_plain(self) -> bool:
        """Whether the images are thumbnails or greyscale, which keep their shapes."""
        return self.chosen.side < PLAIN_SIDE or self.facts.data.greyscale

    @property
    def is_mixed(self) -> bool:
        """Whether images are seen so often that mixing two of them pays.

        The strongest augmentation of single images comes with it, never without.
        """
        return self.length.epochs >= self.disguised_from[1] and not self.is_plain

    @property
    def begins_smaller(self) -> bool:
        """Whether the training is so short that its first epochs are made cheaper."""
        is_short = self.length.epochs < self.disguised_from[0] and self.chosen.side >= PLAIN_SIDE
        is_free = self.user.leaves_model and self.user.leaves_embedding
        plain = self.chosen.tier.patch_size or self.start == "unlabelled"
        return is_free and is_short and not plain


def batch_of_images(images: float) -> int:
    """Return the largest usual batch, up to 256, that so many images in an epoch allow."""
    return max((b for b in _BATCHES if images >= b * _STEPS_PER_EPOCH), default=_BATCHES[0])


def draft_plan(
    facts: PlanFacts, user_settings: Mapping[str, Any], start: Start = "random"
) -> Draft:
    """Return what a plan decides first.

    The training is repeated only if each fit has time for the same model and for enough updates.

    Args:
        facts: data, machine and measured speeds.
        user_settings: what the user has set, by dotted key.
        start: what the training starts from.
    """
    if start == "classifier":
        facts = facts.model_copy(update={"length_share": recipe.WARM_SHARE})
    once = Draft(facts, UserSettings(user_settings), start)
    for several in once.repetitions():
        if start == "published" or (
            several.length.images_seen / several.batch >= _STEPS_OF_A_FIT
            and several.chosen.tier == once.chosen.tier
        ):
            return several
    return once
