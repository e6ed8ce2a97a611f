"""The plan for the last blocks of published weights: whether they can be trained, and for how long.

They are trained between the head alone and all weights: from stored tokens, in minutes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION, FOLDS_OF_BLOCKS
from patchline.pipeline.planning.facts import PlanFacts, UserSettings
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.terminal_words import counted, duration
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.initial_weights import recipe

FEWEST_IMAGES = 5
"""Training images of a class from which the last blocks are trained."""
_FEWEST_UPDATES, _UPDATES = 15, 60
"""Updates from which training is worth its time, and that few images get more epochs for."""
_EPOCHS: int = recipe.LAST_BLOCKS["training"]["epochs"]
_MOST_EPOCHS = 20
_BATCH: int = recipe.LAST_BLOCKS["training"]["batch_size"]
_STEP = 3.5
"""Passes without gradients that a training step takes: forward, backward, update."""
_DEPTH = 12
"""Blocks of a network whose depth is not known."""
_SHARE_OF_TRAINING = 1 / 4
"""Of the preset's time; features and tokens may take the rest. So more images are never trained for
a shorter time until these need more."""
_DIVISIBLE = ("vit", "vit_registers", "simple_vit", "rope_vit", "vit_small_data", "cct")
"""Models whose last blocks can be trained alone."""
NEEDED = {
    "training.folds": None,
    "training.mixup": 0.0,
    "training.cutmix": 0.0,
    "training.initial_image_scale": 1.0,
    "training.compile": None,
    "training.early_stopping": None,
    "training.average_last": None,
    "training.ensemble": False,
    "record.extends": None,
}
"""Values of settings that training from tokens needs."""


class BlocksLength(NamedTuple):
    """How long the last blocks are trained."""

    blocks: int
    epochs: float
    updates: float
    most: int
    """Epochs where there is time for all of them."""
    token_seconds: float
    seconds: float
    """Of all fits together."""
    images_per_second: float
    """Training images of an epoch, in all fits that share it; 0 if that is not known."""

    @property
    def is_limited(self) -> bool:
        """Whether the time ends it before all epochs."""
        return self.epochs < self.most

    def settings(self, user: UserSettings) -> dict[str, Any]:
        """Return epochs, most epochs in a time limit, or the steps that fit where the time ends."""
        if user.seconds:
            return {"training": {"max_epochs": self.most}}
        if self.is_limited and not user.length_is_set:
            return {"record": {"step_plan": [[0, 0.0, max(1, round(self.updates))]]}}
        return {"training": {"epochs": max(1, round(self.epochs))}}

    def sentence(self) -> str:
        """Return what it takes."""
        return (
            f"the tokens of the last {counted(self.blocks, 'block')} take about "
            f"{duration(self.token_seconds)} more, and training them about "
            f"{duration(self.seconds)} ({self.updates:,.0f} updates)"
        )


def blocks_length(facts: PlanFacts, user: UserSettings, speed: float) -> BlocksLength:
    """Return how long the last blocks are trained, at a measured speed of the features.

    Args:
        facts: the numbers of images.
        user: what the user has set.
        speed: images/s without gradients; 0 if it is not known.
    """
    data, default = facts.data, TrainingConfig()
    blocks = int(user.get("training.last_blocks", default.last_blocks))
    part = min(1.0, blocks / user.get("model.depth", _DEPTH))
    views = user.get("training.token_views", default.token_views)
    tokens = (1 - part) * views * (data.training_images + data.validation_images)
    folds = FOLDS_OF_BLOCKS if data.validation_images < FEWEST_VALIDATION else 1
    fits = folds + bool(user.get("training.refit"))
    part_of_pass = max(part, 1 / _DEPTH)
    epoch = fits * part_of_pass * (_STEP * data.training_images + data.validation_images)
    batch = user.get("training.batch_size") or _BATCH
    updates_of_epoch = max(1, data.training_images) / batch
    most = user.get("training.epochs") or user.longest_set
    if not most:
        most = min(_MOST_EPOCHS, max(_EPOCHS, math.ceil(_UPDATES / updates_of_epoch)))
    epochs, seconds = float(most), float("inf")
    if speed:
        most_seconds = PRESETS[facts.preset].minutes * 60
        left = max(0.0, most_seconds - (data.images + tokens) / speed)
        seconds = user.seconds or min(left, _SHARE_OF_TRAINING * most_seconds)
        if "training.epochs" not in user:
            epochs = min(epochs, seconds / (epoch / speed))
    return BlocksLength(
        blocks=blocks,
        epochs=epochs,
        updates=epochs * updates_of_epoch,
        most=int(most),
        token_seconds=tokens / speed if speed else 0.0,
        seconds=epochs * epoch / speed if speed else 0.0,
        images_per_second=speed / (folds * part_of_pass * _STEP),
    )


def forbidding_settings(user: UserSettings) -> list[str]:
    """Return the settings that forbid to train the last blocks, `model.name` first."""
    model = ["model.name"] if user.get("model.name", "vit") not in _DIVISIBLE else []
    return [*model, *(key for key, value in NEEDED.items() if user.get(key, value) != value)]


def suits_blocks(facts: PlanFacts, user: UserSettings, length: BlocksLength) -> bool:
    """Return whether there are images and time for the last blocks, whatever settings forbid.

    The processes of several machines have to share a folder, too.
    """
    spread = user.get("training.processes", 1) > 1 and facts.machine.machines > 1
    if spread and facts.machine.cache_gib is not None:  # a workspace on an object store
        return False
    if not facts.data.has_per_class(FEWEST_IMAGES):
        return False
    if "training.epochs" in user and not user.seconds:
        return length.token_seconds + length.seconds <= PRESETS[facts.preset].minutes * 60
    return length.updates >= _FEWEST_UPDATES
