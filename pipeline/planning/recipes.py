"""The parts of a training recipe: batch, optimizer, augmentation, regularisation.

Each depends on how often the images are seen, which is decided before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from patchline.pipeline.planning.facts import PlanFacts, UserSettings
from patchline.pipeline.planning.tiers import LARGEST_UNSHRUNK, Tier, activations
from patchline.pipeline.workspace import cache_limit

MOST_TRAINING_SHARE = 0.9
"""Of the time, for training steps. Validations take at most the rest, as with a time limit."""
_QUARTERS = (4, 5, 6, 7)
_BATCHES = (*(number << octave for octave in range(2, 6) for number in _QUARTERS), 256)
"""Four for each factor of two, so that a few images more change a batch only a little."""
_BATCHES_ACCELERATOR = (*_BATCHES, 512, 1024)
_STEPS_PER_EPOCH, _STEPS = 23, 100
"""Fewest: Muon needs updates more than it needs exact gradients."""
_STEPS_FOR_EPOCH, _FEWER_IN_FOLDS, _FITS_OF_A_REFIT = 30, 2, 2
"""Updates for each epoch of a preset that few images have at least, by more epochs."""
_STEPS_FOR_LARGE_BATCH = 5_000
_REFERENCE_BATCH = 256
_MEMORY_SHARE, _MEMORY_SHARE_ACCELERATOR, _BYTES = 0.25, 0.6, 4
"""Of the memory, for what a step keeps until its backward pass, in float32."""
_LONG_RUN_STEPS = 2_000
_SHORT_WARMUP, _LONG_WARMUP = 0.15, 0.05
_SGD_RATE = 0.1
_STRONGER_EPOCHS, _STRONGEST_EPOCHS = 8, 30
"""Passes over the images from which they are worth disguising more."""
_STRONGEST_EPOCHS_PHOTOGRAPH = 150
"""The same for photographs. Mixed images were 1.4 points behind after 27 passes over 2,829 of them,
and 1.0 after 143; where they begin to pay is an estimate, within the reach of the preset best."""
_SMALLEST_AREA = 0.25
"""Of the crops of photographs."""
_STRONGER_EPOCHS_EARLY, _STRONGEST_EPOCHS_EARLY = 60, 120
"""The same for small images, where trivialaugment after 38 epochs was behind simple augmentation
after 17 (docs/reference/cifar10.md, "Early pooling")."""
_ERASED = 0.25
"""Share of the small images of which a part is erased from `_STRONGER_EPOCHS` on."""
_FEW_IMAGES, _PLAIN_SIDE = 5_000, 24
_FEW_IMAGES_COUNT = 2.0
"""How many times a pass over few images counts, since they are known by heart sooner."""
_SMALL_PAD = 0.0625
"""2 pixels at 32, which short runs on CIFAR-10 do best with."""
SMALLER, _FULL_SIZE_FROM = 0.75, 0.6
_HELD_TIERS, _HELD_FACTOR = ("small", "medium"), 3.0
_HELD_IMAGES, _HELD_STEPS = 5_000, 150
_HELD_PHOTOGRAPHS, _HELD_STEPS_PHOTOGRAPHS = 2_000, 400
"""Where a larger rate of Muon pays, with a decay that holds the norms of the weights."""
_FORGOTTEN_PER_EPOCH, _LEAST_FORGOTTEN, _MOST_FORGOTTEN = 1.3, 6.0, 20.0
"""How often such a decay replaces the weights, as time constants: rate x decay x steps."""
_LARGEST_DECAY = 10.0
_AVERAGED_SHARE = 0.02
_DECAYS = (0.999, 0.995, 0.99, 0.98, 0.95)
_FILES_SHARE, _WINDOW_SHARE = 1 / 2, 1 / 8
"""Of the memory: what the store may take to be shuffled as a whole, and a window of a larger one,
of which two are in memory at once."""


@dataclass(frozen=True)
class Length:
    """How long the training is."""

    images_seen: float
    epochs: float
    images_per_second: float
    overhead: float = 0.0
    """What an epoch takes beside its steps, as a multiple of these; see `epoch_overhead`."""

    @property
    def seconds(self) -> float:
        """Estimated seconds of training steps."""
        return self.images_seen / self.images_per_second

    @property
    def training_share(self) -> float:
        """Share of the steps in the time; a tenth is reserved for the rest at least."""
        return min(MOST_TRAINING_SHARE, 1 / (1 + self.overhead))


def batch_size(facts: PlanFacts, tier: Tier, side: int, length: Length, images: float) -> int:
    """Return the largest batch with enough steps, overall and in an epoch, that fits memory.

    Args:
        facts: data and machine.
        tier: of the model.
        side: of its images, in pixels.
        length: of the training.
        images: in an epoch.
    """
    accelerator = facts.machine.device == "cuda"
    share = _MEMORY_SHARE_ACCELERATOR if accelerator else _MEMORY_SHARE
    devices = facts.machine.processes if accelerator else 1
    memory = devices * facts.machine.memory_gib * 2**30 * share
    fitting = [
        batch
        for batch in (_BATCHES_ACCELERATOR if accelerator else _BATCHES)
        if images >= batch * _STEPS_PER_EPOCH
        and length.images_seen >= batch * _STEPS
        and batch * _BYTES * activations(tier, side) <= memory
        and (batch <= _REFERENCE_BATCH or length.images_seen >= batch * _STEPS_FOR_LARGE_BATCH)
    ]
    return max(fitting, default=_BATCHES[0])


def shuffle_window(facts: PlanFacts, side: int) -> tuple[float, str]:
    """Return the fraction of the images that are shuffled together, and why if it is not all.

    Args:
        facts: data and machine.
        side: of the stored images, in pixels.
    """
    data = facts.data
    images = data.training_images + data.validation_images + data.test_images
    stored = images * side * side * (1 if data.greyscale else 3)
    memory = facts.machine.host_memory_gib * 2**30
    if facts.machine.cache_gib is not None and stored > facts.machine.cache_gib * 2**30:
        limit = facts.machine.cache_gib * 2**30
        windows = math.ceil(stored / (limit * cache_limit.PAGE_SHARE))
        return math.floor(1e6 / windows) / 1e6, (
            f"the stored images take {stored / 1e9:,.0f} GB and the cache of this machine "
            f"{limit / 1e9:,.0f} GB, so they are read from the object store and shuffled in "
            f"{windows} windows, each a sample of all (training.shuffle_window)"
        )
    if stored <= memory * _FILES_SHARE:
        return 1.0, ""
    windows = math.ceil(stored / (memory * _WINDOW_SHARE))
    return math.ceil(1e4 / windows) / 1e4, (
        f"the stored images take {stored / 1e9:,.0f} GB and the memory is "
        f"{memory / 1e9:,.0f} GB, so they are shuffled in {windows} windows, each a sample of all "
        "(training.shuffle_window)"
    )


def most_epochs(epochs: int, images: float, fits: int = 1) -> int:
    """Return the epochs of a preset, or more where images are so few that there were few updates.

    Args:
        epochs: of the preset.
        images: in an epoch.
        fits: of the run; folds make half as many updates each.
    """
    steps = _STEPS_FOR_EPOCH * epochs / (_FEWER_IN_FOLDS if fits > _FITS_OF_A_REFIT else 1)
    return max(epochs, math.ceil(steps / math.ceil(images / batch_of_images(images))))


def batch_of_images(images: float) -> int:
    """Return the largest usual batch, up to 256, that so many images in an epoch allow."""
    return max((b for b in _BATCHES if images >= b * _STEPS_PER_EPOCH), default=_BATCHES[0])


def optimizer(
    facts: PlanFacts, user: UserSettings, tier: Tier, side: int, batch: int, length: Length
) -> dict[str, Any]:
    """Return the settings of the optimizer that is chosen or set."""
    name = user.optimizer
    steps = length.images_seen / batch
    common = {
        "name": name,
        "schedule": "linear",
        "warmup_fraction": _LONG_WARMUP if steps >= _LONG_RUN_STEPS else _SHORT_WARMUP,
        "weight_decay": 0.05 if length.epochs >= _STRONGER_EPOCHS else 0.0,
    }
    scale = math.sqrt(batch / _REFERENCE_BATCH)
    if name == "muon":
        rate = tier.learning_rate * scale
        if _holds_norms(facts, user, tier, side, batch, length):
            rate *= _HELD_FACTOR
            forgotten = max(_LEAST_FORGOTTEN, _FORGOTTEN_PER_EPOCH * length.epochs)
            used = user.get("optimizer.learning_rate", rate)
            decay = min(forgotten, _MOST_FORGOTTEN) / (steps * used)
            common["weight_decay"] = min(_rounded(decay), _LARGEST_DECAY)
        betas = {"momentum": 0.95, "beta1": 0.9, "beta2": 0.95}
        return {**common, **betas, "learning_rate": _rounded(rate), "gradient_clip": None}
    if name == "adamw":
        rate = _rounded(tier.learning_rate * scale / math.sqrt(2))
        return {**common, "learning_rate": rate, "weight_decay": 0.05, "schedule": "cosine"}
    if name == "sgd":
        rate = _rounded(_SGD_RATE * batch / _REFERENCE_BATCH)
        return {**common, "learning_rate": rate, "momentum": 0.9, "weight_decay": 5e-4}
    return {}  # another optimizer keeps its defaults


def _holds_norms(
    facts: PlanFacts, user: UserSettings, tier: Tier, side: int, batch: int, length: Length
) -> bool:
    """Return whether the training is one for which the larger rate was found to be better.

    With 112 steps it was much worse, with 186 much better: the weights have to be replaced several
    times.
    """
    images, steps = _HELD_IMAGES, _HELD_STEPS
    if _are_photographs(facts):
        images, steps = _HELD_PHOTOGRAPHS, _HELD_STEPS_PHOTOGRAPHS
    return (
        user.leaves_model
        and user.leaves_embedding
        and (tier.pools_early or tier.name in _HELD_TIERS)
        and side >= _PLAIN_SIDE
        and length.images_seen >= images * length.epochs
        and length.images_seen >= steps * batch
    )


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


def smaller_images_first(facts: PlanFacts, tier: Tier, side: int, length: Length) -> dict[str, Any]:
    """Return the settings that make the first epochs of a short training cheaper."""
    stronger, _ = _epochs_of_augmentations(facts, tier)
    if side < _PLAIN_SIDE or length.epochs >= stronger or tier.patch_size:
        return {}
    return {"initial_image_scale": SMALLER, "full_size_from": _FULL_SIZE_FROM}


def augmentation(
    facts: PlanFacts, tier: Tier, side: int, length: Length
) -> tuple[dict[str, Any], str]:
    """Return the augmentation with its settings, and why."""
    epochs, data = length.epochs, facts.data
    stronger, _ = _epochs_of_augmentations(facts, tier)
    if side < _PLAIN_SIDE or data.greyscale:
        return {
            "name": "light"
        }, "thumbnails and greyscale images keep their shapes: light augmentation"
    epochs /= facts.length_share  # the weights of a warm start have seen the images before
    # Between 5,000 and 10,000 images, the count falls to 1 without a step.
    epochs *= min(_FEW_IMAGES_COUNT, max(1.0, 2 * _FEW_IMAGES / data.training_images))
    cropped = (tier.pools_early or tier.patch_size) and _are_photographs(facts)
    has_sets = data.labels_per_image is not None  # a part of an image may lack what a label names
    if is_mixed(facts, tier, side, length):
        name, strength = "randaugment", "strong"
    elif epochs >= stronger and cropped and not has_sets:
        name, strength = "resized_crop", "strong"
    elif epochs >= stronger:
        name, strength = "trivialaugment", "strong"
    else:
        name, strength = "standard", "simple"
    again = " more" if facts.length_share < 1 else ""
    seen = f"each image is seen {_times(length.epochs)}{again}"
    if length.epochs < 0.95:  # noqa: PLR2004 - as rounded
        seen = f"{100 * length.epochs:.2g}% of the images are seen, once"
    mixed = (
        ", MixUp and CutMix" if is_mixed(facts, tier, side, length) else " without mixing images"
    )
    settings: dict[str, Any] = {"name": name}
    if name == "trivialaugment" and cropped and has_sets:
        mixed += ", and no crops, which may lack what a label names"
    if name == "resized_crop":
        settings["smallest_area"] = _SMALLEST_AREA
    if name == "standard":
        settings["pad"] = _SMALL_PAD
        if epochs >= _STRONGER_EPOCHS:
            settings |= {"erase": _ERASED, "alternate_flips": True}
    return settings, f"{seen}: {strength} augmentation ({name}){mixed}"


def is_mixed(facts: PlanFacts, tier: Tier, side: int, length: Length) -> bool:
    """Return whether images are seen so often that mixing two of them pays.

    The strongest augmentation of single images comes with it, never without.
    """
    plain = side < _PLAIN_SIDE or facts.data.greyscale
    _, strongest = _epochs_of_augmentations(facts, tier)
    return length.epochs >= strongest and not plain


def _epochs_of_augmentations(facts: PlanFacts, tier: Tier) -> tuple[int, int]:
    """Return the passes over the images from which strong and strongest augmentation pay."""
    if not tier.pools_early:
        return _STRONGER_EPOCHS, _STRONGEST_EPOCHS
    if _are_photographs(facts):
        return _STRONGER_EPOCHS, _STRONGEST_EPOCHS_PHOTOGRAPH
    return _STRONGER_EPOCHS_EARLY, _STRONGEST_EPOCHS_EARLY


def _are_photographs(facts: PlanFacts) -> bool:
    return facts.data.median_side > LARGEST_UNSHRUNK


def regularisation(
    user: UserSettings, tier: Tier, batch: int, length: Length
) -> tuple[float, float]:
    """Return the decay of the moving average, and the stochastic depth.

    Muon with a rate that falls to zero ends at a better place than its average does while training
    is short.
    """
    if user.optimizer == "muon" and length.epochs < _STRONGER_EPOCHS:
        return 0.0, 0.0
    horizon = max(1.0, length.images_seen / batch * _AVERAGED_SHARE)
    decay = next((each for each in _DECAYS if 1 / (1 - each) <= horizon), _DECAYS[-1])
    long_and_deep = length.epochs >= _STRONGEST_EPOCHS and tier.depth > 2  # noqa: PLR2004 - small
    return decay, 0.1 if long_and_deep else 0.0


def _times(epochs: float) -> str:
    number = f"{epochs:.1f}" if epochs < 10 else f"{epochs:,.0f}"  # noqa: PLR2004 - two digits
    return f"{number} time{'' if number == '1.0' else 's'}"
