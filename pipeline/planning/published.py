"""Published weights: whether the head, the last blocks or all weights are trained, and how long.

The head alone is never a bad choice: it is fitted in seconds on features that are computed once.
All weights are trained after it where there are images and time for all epochs of it, and else the
last blocks, from stored tokens, in minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import Settings, merge_settings
from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION, FOLDS_OF_BLOCKS
from patchline.pipeline.planning.facts import PlanFacts, UserSettings
from patchline.pipeline.presets import PresetName
from patchline.pipeline.terminal_words import counted, duration, epochs_in_words
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.initial_weights import recipe
from patchline.pipeline.training.job import TOKEN_VIEWS

FEATURES = "features"
"""The candidate that stands for the initial weights; its speed is that of their features."""
STEP = 3.5
"""Passes without gradients that a training step takes: forward, backward, update."""
_BATCH: int = recipe.FINE_TUNING["training"]["batch_size"]
_EPOCHS: int = recipe.FINE_TUNING["training"]["epochs"]
_FEWEST_IMAGES, _FEWEST_IMAGES_OF_BLOCKS = 20, 5
"""Training images of a class from which all weights may beat the head alone, and the last blocks.
"""
_FEWEST_UPDATES, _FEWEST_UPDATES_OF_BLOCKS = 30, 15
"""Updates from which these do."""
_UPDATES, _UPDATES_OF_BLOCKS = 100, 60
"""Few images get more epochs for as many updates, up to a number of epochs."""
_MOST_EPOCHS, _MOST_EPOCHS_OF_BLOCKS = 30, 20
_SHARE, _SHARE_OF_BLOCKS = 2 / 3, 1 / 4
"""Of the preset's time; features and tokens may take the rest. So more images are never trained for
a shorter time until these need more."""
_DEPTH = 12
"""Blocks of a network whose depth is not known."""
_BYTES_OF_A_PARAMETER = 20
"""In training: weights, gradients, the optimizer's two moments and the average of the weights, in
float32."""
_SHARE_OF_MEMORY = 0.6
"""For these; the rest is for the images of a step, which are divided where they do not fit."""
_CORRECTED, _WORTH_OF_A_POINT = 1 / 6, 1 / 6
"""Share of the head's errors that training more corrects: 5 to 20 % on CIFAR-10, with 8 to 150
labels a class (docs/how_to/fine_tune.md); and the share of the preset's time that a point of
accuracy is worth, which is a choice."""
_SHARE_OF_FEATURES, _SMALLEST_SIDE = 0.9, 3 / 8
"""Of the training's time, for features; beyond, images are smaller, down to this part (3/8) of the
side that the weights were trained with."""
_DIVISIBLE = ("vit", "vit_registers", "simple_vit", "rope_vit", "vit_small_data", "cct")
"""Models whose last blocks can be trained alone."""
_NEEDED = {
    "training.folds": None,
    "training.mixup": 0.0,
    "training.cutmix": 0.0,
    "training.initial_image_scale": 1.0,
    "training.compile": None,
    "training.early_stopping": None,
}
"""Values of settings that training from tokens needs."""


class Part(NamedTuple):
    """What is trained after the head, and for how long."""

    recipe: Settings
    images_per_second: float
    """Training images of an epoch, in all fits that share it; 0 if that is not known."""
    most: int
    """Number of epochs where there is time for all of them."""
    epochs: float
    updates: float
    seconds: float
    """Duration of all fits together."""
    token_seconds: float
    epoch_seconds: float
    """Duration of an epoch of all fits."""

    @property
    def is_limited(self) -> bool:
        """Whether the time ends it before all epochs."""
        return self.epochs < self.most


@dataclass(frozen=True)
class Published:
    """The training that starts from published weights."""

    facts: PlanFacts
    user: UserSettings
    """What the user has set."""

    @cached_property
    def speed(self) -> float:
        """Features that all processes compute in a second; 0 if that is not known."""
        work = (self.side / self.facts.weights_side) ** 2 if self.side else 1.0
        return self.measured_speed / work

    @property
    def exact_speed(self) -> float:
        """Images that all processes predict in float32 in a second; 0 if that was not measured."""
        measured = self.facts.speed_of(FEATURES)
        if not measured.images_per_second:
            return 0.0
        return self.speed * measured.validated_per_second / measured.images_per_second

    @property
    def measured_speed(self) -> float:
        """The speed with images of the size that the weights were trained with."""
        facts = self.facts
        return facts.machine.times_as_fast * facts.speed_of(FEATURES).images_per_second

    @cached_property
    def side(self) -> int:
        """Pixels per side of the images; fewer than by default where their features take too long.

        The work of an image is in proportion to its patches, about. 0 if the size is not planned.
        """
        whole, patch = self.facts.weights_side, self.facts.weights_patch
        if not (whole and self.measured_speed):
            return whole
        least = math.ceil(_SMALLEST_SIDE * whole / patch) * patch
        work = _SHARE_OF_FEATURES * self.seconds * self.measured_speed / self.facts.data.images
        fitting = int(whole * min(1.0, work) ** 0.5) // patch * patch
        return whole if work >= 1 else max(least, fitting)

    @property
    def feature_seconds(self) -> float:
        """How long the features of all images take; 0 if that is not known."""
        return self.facts.data.images / self.speed if self.speed else 0.0

    @property
    def seconds(self) -> float:
        """How long a part may be trained."""
        return self.facts.training_seconds(self.whole_seconds)

    @property
    def whole_seconds(self) -> float:
        """The time of the whole run."""
        return self.user.seconds or self.facts.minutes * 60

    @cached_property
    def all_weights(self) -> Part:
        """How long all weights are trained; few images get more epochs, for more updates."""
        images = max(1, self.facts.data.training_images)
        fits = sum(self.user.fits(self.facts.data)) / images
        most = min(_MOST_EPOCHS, math.ceil(_UPDATES / math.ceil(images / _BATCH)))
        return self._part(recipe.FINE_TUNING, rate=1 / STEP, few=most, fits=fits, share=_SHARE)

    @cached_property
    def blocks(self) -> int:
        """The last blocks that would be trained."""
        return int(self.user.get("training.last_blocks", TrainingConfig().last_blocks))

    @property
    def share_of_blocks(self) -> float:
        """Share of the last blocks in the network."""
        return min(1.0, self.blocks / float(self.user.get("model.depth", _DEPTH)))

    @cached_property
    def last_blocks(self) -> Part:
        """How long the last blocks are trained, in all fits that share an epoch."""
        data, user, share = self.facts.data, self.user, self.share_of_blocks
        tokens = (1 - share) * TOKEN_VIEWS * (data.training_images + data.validation_images)
        folds = FOLDS_OF_BLOCKS if data.validation_images < FEWEST_VALIDATION else 1
        share = max(share, 1 / _DEPTH)
        fits = (folds + (user.get("training.final_model") == "refit")) * share
        updates_of_epoch = max(1, data.training_images) / self.batch
        most = min(_MOST_EPOCHS_OF_BLOCKS, math.ceil(_UPDATES_OF_BLOCKS / updates_of_epoch))
        return self._part(
            recipe.LAST_BLOCKS,
            rate=1 / (folds * share * STEP),
            few=most,
            fits=fits,
            share=_SHARE_OF_BLOCKS,
            tokens=tokens,
        )

    @property
    def batch(self) -> int:
        """Images of a step."""
        return int(self.user.get("training.batch_size") or _BATCH)

    def _part(
        self,
        settings: Settings,
        *,
        rate: float,
        few: int,
        fits: float,
        share: float,
        tokens: float = 0.0,
    ) -> Part:
        """Return how long a part is trained.

        Args:
            settings: the part's recipe.
            rate: the speed of training the part, as a share of the speed of computing features.
            few: epochs of few images, if these are more than usual.
            fits: passes through the network that an epoch takes, with all fits.
            share: the largest share of the preset's time that it may take.
            tokens: passes before the first step.
        """
        user, data, speed = self.user, self.facts.data, self.speed or math.inf
        most = user.get("training.epochs") or max(_EPOCHS, few)
        passes = fits * (STEP * data.training_images + data.validation_images)
        left = self.seconds - (data.images + tokens) / speed
        seconds = max(0.0, left if user.seconds else min(left, share * self.seconds))
        epochs = float(most)
        if self.speed and not user.epochs:
            epochs = min(epochs, seconds / (passes / speed))
        updates = epochs * data.training_images / self.batch
        return Part(
            settings,
            self.speed * rate,
            int(most),
            epochs,
            updates,
            epochs * passes / speed,
            tokens / speed,
            passes / speed,
        )

    @cached_property
    def trainable(self) -> str:
        """What is trained; `training.trainable` lists the choices."""
        if is_set := self.user.get("training.trainable"):
            return str(is_set)
        if self._needs_all:
            return "all"
        suits = bool(self.speed) and not self._forbidding and self._suits_blocks
        otherwise, whole = "last_blocks" if suits else "head", self.all_weights
        enough = bool(self.speed) and whole.updates >= _FEWEST_UPDATES
        if suits and whole.is_limited:
            enough = False
        if self.user.epochs and self.speed:
            enough = whole.seconds <= self.seconds
        suits_all = enough and self._has_enough_images and self._fits_memory
        return "head_then_all" if suits_all and not self._repeated else otherwise

    @property
    def part(self) -> Part | None:
        """What is trained after the head."""
        if self.trainable == "last_blocks":
            return self.last_blocks
        return None if self.trainable == "head" else self.all_weights

    @property
    def accepted_error(self) -> float:
        """Error of the head up to which more is not worth its time; 0 where the user decides it."""
        user = self.user
        is_planned = not user.length_is_set and "training.trainable" not in user
        several = user.get("training.processes", 1) > 1  # whose other ranks have no head to judge
        if self.part is None or self.trainable == "all" or several or not is_planned:
            return 0.0
        seconds = self.part.token_seconds + self.part.seconds
        points = seconds / (_WORTH_OF_A_POINT * self.whole_seconds)
        return round(min(1.0, points / 100 / _CORRECTED), 3)

    def settings(self) -> Settings:
        """Return what is trained, with its recipe and its length.

        That is epochs, also in a time limit, or the steps that fit where the time ends them.
        """
        chosen: Settings = {"training": {"trainable": self.trainable}}
        if self.side:
            chosen["data"] = {"image_size": self.side}
        if (part := self.part) is None:
            return chosen
        chosen = merge_settings(part.recipe, chosen)
        if accepted := self.accepted_error:
            chosen["record"] = {"accepted_error": accepted}
        if self.user.seconds:
            return merge_settings(chosen, {"training": {"epochs": part.most}})
        if part.is_limited and not self.user.length_is_set:
            steps = max(1, round(part.updates))
            return merge_settings(chosen, {"record": {"step_plan": [[0, 0.0, steps]]}})
        return merge_settings(chosen, {"training": {"epochs": max(1, round(part.epochs))}})

    @property
    def images_per_second(self) -> float:
        """Training images; of a head alone, those of the features."""
        rate = self.part.images_per_second if self.part else self.speed
        return rate or 1.0

    @property
    def seconds_before(self) -> float:
        """How long features and tokens take before the first step."""
        if self.trainable in ("head", "all"):
            return 0.0
        tokens = self.last_blocks.token_seconds if self.trainable == "last_blocks" else 0.0
        return self.feature_seconds + tokens

    @property
    def _needs_all(self) -> str:
        """The setting that only a training run of all weights has, if there is one."""
        if self.user.get("training.final_model") == "ensemble":
            return "training.final_model ensemble"
        return "training.teacher" if self.user.get("training.teacher") else ""

    @property
    def _repeated(self) -> str:
        """The setting that repeats the training, if there is one.

        How far all weights go from the head is decided by one validation split.
        """
        if self.user.get("training.folds"):
            return "training.folds"
        is_refitted = self.user.get("training.final_model") == "refit"
        return "training.final_model refit" if is_refitted else ""

    @property
    def _forbidding(self) -> list[str]:
        """The settings that forbid to train the last blocks, `model.name` first."""
        get = self.user.get
        model = ["model.name"] if get("model.name", "vit") not in _DIVISIBLE else []
        return [*model, *(key for key, value in _NEEDED.items() if get(key, value) != value)]

    @property
    def _suits_blocks(self) -> bool:
        """Whether there are images and time for the last blocks, whatever settings forbid.

        The processes of several machines have to share a folder, too.
        """
        user, machine, length = self.user, self.facts.machine, self.last_blocks
        spread = user.get("training.processes", 1) > 1 and machine.machines > 1
        on_objects = spread and machine.cache_gib is not None
        if on_objects or self.facts.data.images_per_class < _FEWEST_IMAGES_OF_BLOCKS:
            return False
        if user.epochs:
            return length.token_seconds + length.seconds <= self.seconds
        return length.updates >= _FEWEST_UPDATES_OF_BLOCKS

    @property
    def _training_gib(self) -> float:
        """The memory that training all weights takes, without images; 0 if it is not known."""
        return self.facts.parameters * _BYTES_OF_A_PARAMETER / 2**30

    @property
    def _fits_memory(self) -> bool:
        return self._training_gib <= _SHARE_OF_MEMORY * self.facts.machine.memory_gib

    @property
    def _has_enough_images(self) -> bool:
        return self.facts.data.images_per_class >= _FEWEST_IMAGES

    # -- in words ------------------------------------------------------------------------------

    def why_measured(self) -> str:
        """Return the measured speed; empty if it decides nothing."""
        if "training.trainable" in self.user or self._needs_all or not self.speed:
            return ""
        return (
            f"measured {self.measured_speed:.3g} images/s without gradients "
            f"({self.facts.machine.computes_on}): the features of all "
            f"{self.facts.data.images:,} images take about {duration(self.feature_seconds)}"
            f"{self._why_side()}"
        )

    def _why_side(self) -> str:
        """Return why images are smaller than the weights were trained with; empty if not."""
        whole = self.facts.weights_side
        if self.side == whole:
            return ""
        needed = self.facts.data.images / self.measured_speed / _SHARE_OF_FEATURES
        return (
            f" at {self.side} instead of {whole} pixels, for which the run needs about "
            f"{duration(self.facts.other_seconds + needed)}"
        )

    def why_trainable(self) -> str:
        """Return why the head, the last blocks or all weights are trained."""
        data = self.facts.data
        known = f"{data.training_images:,} training images in {data.classes_in_words}"
        unless = ""
        if accepted := self.accepted_error:
            unless = (
                f"; skipped if the head's validation error is {accepted:.1%} or less, as a gain of "
                f"about {100 * accepted * _CORRECTED:.2g} points would not be worth the time"
            )
        return f"{known}: {self._why()}{unless}"

    def _why(self) -> str:
        whole, blocks = self.all_weights, self.last_blocks
        if "training.trainable" in self.user:
            return "training.trainable as set"
        if self._needs_all:
            return f"{self._needs_all} needs a training run of all weights"
        if not self.speed:
            return "the speed is not known, so only the head is trained"
        if self.trainable == "last_blocks":
            return (
                f"the tokens of the last {counted(self.blocks, 'block')} take about "
                f"{duration(blocks.token_seconds)} more, and training them about "
                f"{duration(blocks.seconds)} ({blocks.updates:,.0f} updates)"
                f"{self._what_ends(blocks)}"
            )
        if self.trainable == "head":
            return self._why_head(whole)
        return (
            f"training all weights for {epochs_in_words(whole.epochs)} ({whole.updates:,.0f} "
            f"updates) takes about {duration(whole.seconds)} more, and is kept as far as the "
            f"validation images allow{self._what_ends(whole)}"
        )

    def _why_head(self, whole: Part) -> str:
        user, data = self.user, self.facts.data
        if repeated := self._repeated:
            return f"with {repeated}, only the head is fitted unless training.trainable is set"
        too_few = {_FEWEST_IMAGES_OF_BLOCKS: "more than the head", _FEWEST_IMAGES: "all weights"}
        for fewest, more in too_few.items():
            if data.images_per_class < fewest:
                return f"fewer than {fewest} per {data.class_word}, too few to train {more}"
        if not self._fits_memory:
            return self._why_memory
        budget = user.get("training.time_limit") or f"{self.facts.minutes:g} minutes"
        blocks = self.last_blocks
        if user.epochs:
            took = f"{epochs_in_words(whole.epochs)} would take about {duration(whole.seconds)}"
            return f"training all weights for {took}, longer than {budget}"
        epochs = _FEWEST_UPDATES_OF_BLOCKS * self.batch / max(1, data.training_images)
        needed = self.feature_seconds + blocks.token_seconds + epochs * blocks.epoch_seconds
        seconds = self.facts.other_seconds + needed
        more = f"; a limit of about {duration(seconds)} has time for the last blocks"
        return (
            f"{budget} have time for about {whole.updates:,.0f} updates of all weights beside the "
            f"features, too few (at least {_FEWEST_UPDATES}){'' if self._forbidding else more}"
        )

    def _what_ends(self, part: Part) -> str:
        """Return what makes a training shorter, or what ends it before the limit that is set."""
        user = self.user
        if user.seconds and not part.is_limited and user.get("training.epochs", part.most):
            epochs = counted(part.most, "epoch")
            return f"; it ends after {epochs} (training.epochs), before training.time_limit"
        return "" if user.length_is_set else f" ({shorter(self.facts.preset)})"

    def why_no_more(self) -> str:
        """Return why all weights are not trained where only the last blocks fit the memory."""
        planned = "training.trainable" not in self.user and self.trainable == "last_blocks"
        return "" if self._fits_memory or not planned else self._why_memory

    @property
    def _why_memory(self) -> str:
        return (
            f"training all {self.facts.parameters / 1e6:,.0f} million weights takes "
            f"{self._training_gib:.2g} GiB besides the images of a step, too much for the "
            f"{self.facts.machine.memory_gib:.3g} GiB of memory"
        )

    def why_no_blocks(self) -> str:
        """Return which settings keep the last blocks from being trained; empty if none does."""
        user, forbidding = self.user, self._forbidding
        if "training.trainable" in user or forbidding in ([], ["training.folds"]):  # has a reason
            return ""
        possible = UserSettings({**user.values, "model.name": "vit", **_NEEDED})
        if Published(self.facts, possible).trainable != "last_blocks":
            return ""
        if forbidding[0] == "model.name":
            name = user.get("model.name")
            return (
                f"the last blocks are not trained: those of a {name} model cannot be trained alone"
            )
        *others, last = (f"{key} is {str(user.get(key)).lower()}" for key in forbidding)
        listed, them = (f"{', '.join(others)} and {last}", "these") if others else (last, "it")
        return (
            "the last blocks are not trained, although there are images and time for them: "
            f"{listed}, and they are trained on stored tokens, without {them}; leave "
            f"{'all of them' if others else 'it'} out to train the last blocks"
        )


def size_of_weights(config: RunConfig) -> dict[str, int]:
    """Return the facts about the images of published weights, where the plan may choose the size.

    Args:
        config: the run's settings, which follow the weights.
    """
    listed, embedding = config.record.set_by_user, config.model.patch_embedding.settings
    is_open = listed is not None and "data.image_size" not in listed
    patch = embedding.get("patch_size")
    if not is_open or config.model.name not in _DIVISIBLE or not isinstance(patch, int):
        return {}
    return {"weights_side": config.data.image_size or 0, "weights_patch": patch}


def shorter(preset: PresetName) -> str:
    """Return how a planned training is made shorter."""
    by_preset = "" if preset == "quick" else "--preset quick or "
    return f"for less, {by_preset}--training.time-limit"
