"""The parts of a training recipe: optimizer, augmentation, regularisation, shuffling.

Each depends on how often the images are seen, which is decided before.
"""

from __future__ import annotations

import math

from patchline.pipeline.config_files import Settings
from patchline.pipeline.planning.draft import (
    PLAIN_SIDE,
    RATE,
    REFERENCE_BATCH,
    STRONGER_EPOCHS,
    STRONGEST_EPOCHS,
    Draft,
)
from patchline.pipeline.workspace import cache_limit

_LONG_RUN_STEPS = 2_000
_SHORT_WARMUP, _LONG_WARMUP = 0.15, 0.05
_SGD_RATE = 0.1
_SMALLEST_AREA = 0.25
"""Of the crops of photographs."""
_ERASED = 0.25
"""Share of the small images of which a part is erased from `STRONGER_EPOCHS` on."""
_FEW_IMAGES = 5_000
_FEW_IMAGES_COUNT = 2.0
"""How many times a pass over few images counts, since they are known by heart sooner."""
_SMALL_PAD = 0.0625
"""2 pixels at 32, which short runs on CIFAR-10 do best with."""
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


def shuffle_window(draft: Draft) -> tuple[float, str]:
    """Return the fraction of the images that are shuffled together, and why if it is not all."""
    data, machine, side = draft.facts.data, draft.facts.machine, draft.chosen.side
    stored = data.images * side * side * (1 if data.greyscale else 3)
    memory, cache = machine.host_memory_gib * 2**30, (machine.cache_gib or math.inf) * 2**30
    takes = f"the stored images take {stored / 1e9:,.0f} GB and the"
    each = "windows, each a sample of all (record.shuffle_window)"
    if stored > cache:
        windows = math.ceil(stored / (cache * cache_limit.PAGE_SHARE))
        return math.floor(1e6 / windows) / 1e6, (
            f"{takes} cache of this machine {cache / 1e9:,.0f} GB, so they are read from the "
            f"object store and shuffled in {windows} {each}"
        )
    if stored <= memory * _FILES_SHARE:
        return 1.0, ""
    windows = math.ceil(stored / (memory * _WINDOW_SHARE))
    return math.ceil(1e4 / windows) / 1e4, (
        f"{takes} memory is {memory / 1e9:,.0f} GB, so they are shuffled in {windows} {each}"
    )


def optimizer(draft: Draft) -> Settings:
    """Return the settings of the optimizer that is chosen or set."""
    user, tier, batch, length = draft.user, draft.chosen.tier, draft.batch, draft.length
    name, steps = user.optimizer, length.images_seen / batch
    common = {
        "name": name,
        "schedule": "linear",
        "warmup_fraction": _LONG_WARMUP if steps >= _LONG_RUN_STEPS else _SHORT_WARMUP,
        "weight_decay": 0.05 if length.epochs >= STRONGER_EPOCHS else 0.0,
    }
    scale = math.sqrt(batch / REFERENCE_BATCH)
    if name == "muon":
        rate = tier.learning_rate * scale
        if _holds_norms(draft):
            rate *= _HELD_FACTOR
            forgotten = max(_LEAST_FORGOTTEN, _FORGOTTEN_PER_EPOCH * length.epochs)
            decay = min(forgotten, _MOST_FORGOTTEN) / (steps * user.get(RATE, rate))
            common["weight_decay"] = min(_round(decay), _LARGEST_DECAY)
        betas = {"momentum": 0.95, "beta1": 0.9, "beta2": 0.95}
        return {**common, **betas, "learning_rate": _round(rate), "gradient_clip": None}
    if name == "adamw":
        rate = _round(tier.learning_rate * scale / math.sqrt(2))
        return {**common, "learning_rate": rate, "weight_decay": 0.05, "schedule": "cosine"}
    if name == "sgd":
        rate = _round(_SGD_RATE * batch / REFERENCE_BATCH)
        return {**common, "learning_rate": rate, "momentum": 0.9, "weight_decay": 5e-4}
    return {}  # another optimizer keeps its defaults


def _holds_norms(draft: Draft) -> bool:
    """Return whether the training is one for which the larger rate was found to be better.

    With 112 steps it was much worse, with 186 much better: the weights have to be replaced several
    times.
    """
    user, tier, length = draft.user, draft.chosen.tier, draft.length
    images, steps = _HELD_IMAGES, _HELD_STEPS
    if draft.are_photographs:
        images, steps = _HELD_PHOTOGRAPHS, _HELD_STEPS_PHOTOGRAPHS
    return (
        user.leaves_model
        and user.leaves_embedding
        and (tier.pools_early or tier.name in _HELD_TIERS)
        and draft.chosen.side >= PLAIN_SIDE
        and length.images_seen >= max(images * length.epochs, steps * draft.batch)
    )


def _round(rate: float) -> float:
    return float(f"{rate:.2g}")


def augmentation(draft: Draft) -> tuple[Settings, str]:
    """Return the augmentation with its settings, and why."""
    facts, data, tier = draft.facts, draft.facts.data, draft.chosen.tier
    if draft.is_plain:
        why = "thumbnails and greyscale images keep their shapes: light augmentation"
        return {"name": "light"}, why
    epochs = draft.length.epochs / facts.length_share  # a warm start's weights have seen images
    # Between 5,000 and 10,000 images, the count falls to 1 without a step.
    epochs *= min(_FEW_IMAGES_COUNT, max(1.0, 2 * _FEW_IMAGES / data.training_images))
    cropped = (tier.pools_early or tier.patch_size) and draft.are_photographs
    has_sets = data.labels_per_image is not None  # a part of an image may lack what a label names
    settings: Settings = {"name": "standard", "pad": _SMALL_PAD}
    strength, mixed = "strong", " without mixing images"
    if draft.is_mixed:
        settings, mixed = {"name": "randaugment"}, ", MixUp and CutMix"
    elif epochs < draft.disguised_from[0]:
        strength = "simple"
        if epochs >= STRONGER_EPOCHS:
            settings |= {"erase": _ERASED, "alternate_flips": True}
    elif cropped and not has_sets:
        settings = {"name": "resized_crop", "smallest_area": _SMALLEST_AREA}
    else:
        settings = {"name": "trivialaugment"}
        mixed += ", and no crops, which may lack what a label names" * bool(cropped)
    again = " more" if facts.length_share < 1 else ""
    seen = f"each image is seen {_times(draft.length.epochs)}{again}"
    if draft.length.epochs < 0.95:  # noqa: PLR2004 - as rounded
        seen = f"{100 * draft.length.epochs:.2g}% of the images are seen, once"
    return settings, f"{seen}: {strength} augmentation ({settings['name']}){mixed}"


def regularisation(draft: Draft) -> Settings:
    """Return the decay of the moving average, and the stochastic depth of long training.

    Muon with a rate that falls to zero ends at a better place than its average does while training
    is short.
    """
    length, user = draft.length, draft.user
    if user.optimizer == "muon" and length.epochs < STRONGER_EPOCHS:
        return {"training": {"ema_decay": 0.0}}
    horizon = max(1.0, length.images_seen / draft.batch * _AVERAGED_SHARE)
    decay = next((each for each in _DECAYS if 1 / (1 - each) <= horizon), _DECAYS[-1])
    settings: Settings = {"training": {"ema_decay": decay}}
    is_deep = draft.chosen.tier.depth > 2 and user.leaves_model  # noqa: PLR2004 - small
    if is_deep and length.epochs >= STRONGEST_EPOCHS:
        settings["model"] = {"stochastic_depth": 0.1}
    return settings


def _times(epochs: float) -> str:
    number = f"{epochs:.1f}" if epochs < 10 else f"{epochs:,.0f}"  # noqa: PLR2004 - two digits
    return f"{number} time{'' if number == '1.0' else 's'}"
