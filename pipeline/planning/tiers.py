"""The models that a plan chooses from, from small to large, and how fast each of them trains.

A larger model reaches a higher accuracy, but only after more images seen; below the numbers here, a
smaller one is ahead after the same time. Measured on CIFAR-10 unless noted.

Thumbnails get attention blocks on some 64 tokens. Small images, of 24 to 64 pixels, and photographs
learn more from the same computation in convolutions: their embedding pools early and has more
filters. Small images leave some 12 tokens to one or two blocks, photographs 25 to 81. With hundreds
of thousands of photographs and a GPU, a plain ViT-S/16 at 224 pixels is worth its computation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from patchline.pipeline.planning.facts import MachineFacts, PlanFacts, Speed
from patchline.pipeline.terminal_words import counted

THUMBNAIL = 16
"""Images below this side are learned fast: of the scanned digits of 8 pixels, the tiny model has
99.7 % right after two epochs (285 of 286 test images), as the default model after 60."""


@dataclass(frozen=True)
class Tier:
    """A size of the Vision Transformer behind a whitened convolutional embedding."""

    name: str
    embed_dim: int
    depth: int
    num_heads: int
    images_seen: int
    """Images (with repetition) from which it beats the tier before."""
    training_images: int
    """Different images that it needs, so as not to learn them by heart."""
    image_size: int
    """Least side in pixels of images that it finds more in."""
    photo_size: int
    """Side in pixels of photographs, which may be shrunk to any size."""
    learning_rate: float
    """Learning rate of Muon with batches of 256."""
    why: str
    pools_early: bool = False
    """Whether the embedding pools before norm and activation, with more filters."""
    mirror_equivariant: bool = False
    """Whether the embedding mirrors every filter where that keeps the classes."""
    patch_size: int | None = None
    """Pixels per side of the patches of a plain ViT with a convolutional stem (arXiv 2106.14881);
    None for a whitened embedding that halves the image."""

    @property
    def mlp_dim(self) -> int:
        """Hidden dimension of the MLPs."""
        return (2 if self.pools_early else 4) * self.embed_dim


TIERS = (
    Tier(
        "tiny", 64, 2, 2, 0, 0, 0, 64, 6e-3,
        "a quarter of small's computation: for seconds of training, or thumbnails",
    ),
    Tier(
        "small", 128, 2, 4, 12_000, 200, THUMBNAIL, 64, 4e-3,
        "learns fastest in the first few passes over tens of thousands of images",
    ),
    Tier(
        "medium", 192, 4, 6, 400_000, 4_000, THUMBNAIL, 96, 3e-3,
        "from about 8 passes over 50,000 images on, when small has reached its capacity",
    ),
    Tier(
        "large", 256, 6, 8, 2_000_000, 15_000, 24, 128, 2e-3,
        "for about 40 passes over 50,000 images: hours on a CPU, minutes on a GPU",
    ),
    Tier(
        "huge", 384, 10, 6, 20_000_000, 100_000, 24, 160, 1e-3,
        "ViT-S in width; for GPUs and hundreds of thousands of images",
    ),
)  # fmt: skip
"""Rising in size."""

SMALL_IMAGE_TIERS = (
    Tier(
        "tiny", 64, 1, 2, 0, 0, 0, 64, 6e-3,
        "a quarter of small's computation: for seconds of training",
        pools_early=True, mirror_equivariant=True,
    ),
    Tier(
        "small", 128, 1, 4, 12_000, 200, THUMBNAIL, 64, 4e-3,
        "learns fastest in the first few passes over tens of thousands of images",
        pools_early=True, mirror_equivariant=True,
    ),
    Tier(
        "medium", 192, 1, 6, 300_000, 4_000, THUMBNAIL, 96, 4e-3,
        "from about 6 passes over 50,000 images on, when small has reached its capacity",
        pools_early=True, mirror_equivariant=True,
    ),
    Tier(
        "large", 256, 1, 8, 700_000, 15_000, 24, 128, 4e-3,
        "for about 15 passes over 50,000 images",
        pools_early=True, mirror_equivariant=True,
    ),
    Tier(
        "huge", 384, 2, 12, 5_000_000, 30_000, 24, 160, 3e-3,
        "for a hundred passes over 50,000 images, or hundreds of thousands of images",
        pools_early=True, mirror_equivariant=True,
    ),
)  # fmt: skip
"""Rising in size; for small images. The limits of large and huge are estimates."""
_VIT_S = Tier(
    "vit_s16", 384, 12, 6, 4_000_000, 300_000, 224, 224, 1e-3,
    "ViT-S/16 at 224 pixels: for hundreds of thousands of photographs on a GPU",
    patch_size=16,
)  # fmt: skip
PHOTOGRAPH_TIERS = (
    *(
        replace(
            early,
            depth=depth,
            images_seen=images_seen,
            photo_size=size,
            why=late.why,
            mirror_equivariant=False,
        )
        for early, late, depth, images_seen, size in zip(
            SMALL_IMAGE_TIERS,
            TIERS,
            (1, 1, 2, 4, 8),
            (0, 12_000, 300_000, 1_000_000, 10_000_000),
            (64, 96, 96, 128, 160),
            strict=True,
        )
    ),
    _VIT_S,
)
"""Rising in size; for photographs. Only small was measured, on 2,945 of them in five classes."""
_SMALL_IMAGES = 24
"""Least side in pixels of the images that pool early."""


def tiers_for(median_side: int) -> tuple[Tier, ...]:
    """Return the models for images of a side in pixels, rising in size."""
    if median_side < _SMALL_IMAGES:
        return TIERS
    return SMALL_IMAGE_TIERS if median_side <= LARGEST_UNSHRUNK else PHOTOGRAPH_TIERS


_MANY_CLASSES, _LEAST_SHARE = 10, 0.25


def share_for_classes(classes: int) -> float:
    """Return which share of a tier's numbers of photographs is enough for so many classes.

    More classes need more features, so a larger model pays sooner: in proportion to the square root
    of their number, from ten on. An estimate.
    """
    return max(_LEAST_SHARE, math.sqrt(_MANY_CLASSES / max(_MANY_CLASSES, classes)))


OWN = "own"
"""The candidate that stands for a model that the user has chosen; `small` lends it its recipe."""

LARGEST_UNSHRUNK = 64
"""Sources up to so many pixels keep their size; larger ones are photographs."""
_FEWEST_PIXELS, _SIDE_STEP, _PHOTOGRAPH_STEP = 8, 4, 32


def image_side(tier: Tier, median_side: int) -> int:
    """Return the side in pixels that a tier sees; images are never enlarged.

    Args:
        tier: the tier, which decides the size of photographs.
        median_side: median of the images' shorter sides, in pixels.
    """
    if median_side > LARGEST_UNSHRUNK:
        return min(tier.photo_size, median_side // _PHOTOGRAPH_STEP * _PHOTOGRAPH_STEP)
    return max(_FEWEST_PIXELS, median_side // _SIDE_STEP * _SIDE_STEP)


_WANTED_TOKENS, _WANTED_TOKENS_LARGE, _LARGE_SIDE = 64, 100, 128
_WANTED_TOKENS_EARLY, _SMALL_SIDE = 12, 32
_WANTED_TOKENS_PHOTOGRAPH, _PHOTOGRAPH_SIDE = 49, 64


def halvings(side: int, *, pools_early: bool = False) -> int:
    """Return how often the embedding halves an image.

    So that there are about 64 tokens, and 100 from 128 pixels; if it pools early, 12 up to 32
    pixels, 49 from 64 pixels on, and in between as much more as the image is larger: otherwise one
    pixel would be worth three times the computation.
    """
    target: float = _WANTED_TOKENS_LARGE if side >= _LARGE_SIDE else _WANTED_TOKENS
    if pools_early:
        octaves = math.log2(min(_PHOTOGRAPH_SIDE, max(_SMALL_SIDE, side)) / _SMALL_SIDE)
        target = (
            _WANTED_TOKENS_EARLY * (_WANTED_TOKENS_PHOTOGRAPH / _WANTED_TOKENS_EARLY) ** octaves
        )
    choices = range(1, max(2, (max(side, 5) - 1).bit_length() - 1))
    return min(choices, key=lambda number: _distance(tokens(side, number), target))


def tokens(side: int, number: int) -> int:
    """Return the number of tokens after so many halvings of the whitened embedding."""
    return max(1, (side - 1) >> number) ** 2


def _distance(count: int, target: float) -> float:
    return max(count / target, target / count)


def work(tier: Tier, side: int, channels: int) -> float:
    """Return roughly the multiply-accumulates of an image, to compare candidates by."""
    if tier.patch_size:
        return _stem(tier, side, channels) + _blocks(tier, (side // tier.patch_size) ** 2)
    number, whitened = halvings(side, pools_early=tier.pools_early), 8 * channels
    convolutions = _early_convolutions if tier.pools_early else _late_convolutions
    total = float(side**2 * 4 * channels * whitened)
    for size, before, after in convolutions(tier.embed_dim, number, side, whitened):
        total += 9 * size**2 * before * after
    return total + _blocks(tier, tokens(side, number))


def _blocks(tier: Tier, count: int) -> float:
    width = tier.embed_dim
    per_token = 4 * width**2 + 2 * tier.mlp_dim * width + 2 * count * width
    return float(count * tier.depth * per_token)


def _stem(tier: Tier, side: int, channels: int) -> float:
    """Return those of 3x3 convolutions that halve the image and double the width each."""
    steps = max(1, (tier.patch_size or 2).bit_length() - 1)
    widths = [channels, *(tier.embed_dim / 2.0**step for step in reversed(range(steps)))]
    total = 0.0
    for step, (before, after) in enumerate(pairwise(widths)):
        total += 9 * (side / 2 ** (step + 1)) ** 2 * before * after
    return total


def activations(tier: Tier, side: int) -> float:
    """Return roughly the values of an image that are kept until the backward pass."""
    if tier.patch_size:
        stem = 12 * (side / 2) ** 2 * tier.embed_dim / tier.patch_size
        return stem + 20 * (side // tier.patch_size) ** 2 * tier.embed_dim * tier.depth
    number = halvings(side, pools_early=tier.pools_early)
    convolutions = 12 * side**2 * first_filters(tier, number)
    return convolutions + 20 * tokens(side, number) * tier.embed_dim * tier.depth


Convolutions = Iterator[tuple[float, float, float]]
"""Of each: the side of what it reads, and its channels before and after."""


def _late_convolutions(embed_dim: int, number: int, side: int, whitened: int) -> Convolutions:
    widths = [embed_dim * 0.75 / 2.0**step for step in reversed(range(number))]
    yield side, whitened, widths[0]
    for step, (before, after) in enumerate(pairwise([*widths, embed_dim])):
        size = side / 2 ** (step + 1)
        if step + 1 < number:
            yield size, before, before
        yield size, before, after


def _early_convolutions(embed_dim: int, number: int, side: int, whitened: int) -> Convolutions:
    before = float(whitened)
    for step, share in enumerate(_early_shares(number)):
        width = embed_dim * share
        yield side / 2**step, before, width
        yield side / 2 ** (step + 1), width, width
        before = width


def first_filters(tier: Tier, number: int) -> float:
    """Return about as many filters as the embedding has at the full size of the image."""
    if tier.pools_early:
        return tier.embed_dim * _early_shares(number)[0]
    return tier.embed_dim * 0.75 / 2.0 ** (number - 1)


def _early_shares(number: int) -> list[float]:
    """Return the filters of each stage, as a share of the embedding dimension."""
    deep = number > 2  # noqa: PLR2004 - of two stages, only the last has all filters
    stages = reversed(range(number))
    return [1.0 if stage <= deep else 0.5 ** max(2, stage) for stage in stages]


_FLOPS_PER_MAC = 6
"""A forward and a backward pass, two operations each."""
_THREAD_FLOPS = 8e9
"""Of a CPU thread in training, where nothing was measured: half of what two AVX2 cores reach."""
_ACCELERATOR_FLOPS = {"cuda": 4e12, "mps": 5e11}
_KEEPS_GAIN = 0.8
"""Share of a larger model's work that it really costs: small models keep cores waiting."""

_NEGLIGIBLE, _RESERVE, _MOST_WORKERS = 0.05, 1.2, 16
"""Cores that augmentation needs below which it needs no worker; and how many more than that."""
_LEAST_SHARE_OF_TIME = 0.02
"""Of a step, for the model: a measured augmentation cannot have taken all of it."""


def images_per_second(facts: PlanFacts, tier: Tier, tiers: Sequence[Tier], name: str) -> float:
    """Return the training speed of a candidate.

    Args:
        facts: the facts of the plan, with the speeds that were measured.
        tier: the candidate's tier.
        tiers: all tiers that are compared, rising in size.
        name: the candidate's name.
    """
    measured = {each.candidate: compute_reached_speed(facts.machine, each) for each in facts.speeds}
    if name in measured:
        return measured[name]
    measured_tiers = [each for each in tiers if measured.get(each.name)]
    if name == OWN or not measured_tiers:
        return _guess_speed(tier, facts)
    for below, above in pairwise(measured_tiers):
        if tiers.index(below) < tiers.index(tier) < tiers.index(above):
            works = [_work(each, facts) for each in (below, tier, above)]
            return _between(works, measured[below.name], measured[above.name])
    nearest = min(measured_tiers, key=lambda each: abs(tiers.index(each) - tiers.index(tier)))
    ratio = _work(tier, facts) / _work(nearest, facts)
    if ratio > 1:
        ratio = max(1.0, _KEEPS_GAIN * ratio)
    return measured[nearest.name] / ratio


def _between(works: Sequence[float], below: float, above: float) -> float:
    """Return the speed of a model between two that were measured, a power of its work.

    So a small model that a GPU waits for says nothing about a large one.
    """
    first, own, last = (math.log(work) for work in works)
    share = (own - first) / (last - first) if last > first else 0.5
    return math.exp((1 - share) * math.log(below) + share * math.log(above))


def compute_reached_speed(machine: MachineFacts, measured: Speed) -> float:
    """Return the speed that a training run reaches: with data-loader workers, if it needs them.

    Args:
        machine: the machine, with its cores and the processes that train together.
        measured: the speed of one process.
    """
    if not measured.loaded_per_second or not measured.images_per_second:
        return machine.times_as_fast * measured.images_per_second
    with_workers = measured.loaded_per_second * max(1, workers(machine, measured))
    one = max(measured.images_per_second, min(_alone(measured), with_workers))
    return machine.times_as_fast * one


def workers(machine: MachineFacts, measured: Speed) -> int:
    """Return how many data-loader workers of a process keep up with the training; 0 on a CPU.

    Args:
        machine: the machine, with its cores, which the processes share.
        measured: the measured speed; the trial steps augmented their images themselves.
    """
    if not measured.loaded_per_second or not measured.images_per_second:
        return 0
    return workers_for(machine, _alone(measured), measured.loaded_per_second)


def workers_for(machine: MachineFacts, rate: float, loaded_per_second: float) -> int:
    """Return how many data-loader workers of a process keep up with the training; 0 on a CPU.

    Args:
        machine: the machine, with its cores, which the processes share.
        rate: images that a process trains in a second, without augmenting them.
        loaded_per_second: images that one core augments; 0 if whole batches are, on the device.
    """
    if machine.device == "cpu" or not loaded_per_second:
        return 0
    needed = rate / loaded_per_second
    if needed < _NEGLIGIBLE:
        return 0
    cores = machine.threads // machine.local_processes
    return max(1, min(_MOST_WORKERS, cores - 1, math.ceil(_RESERVE * needed)))


def why_workers(machine: MachineFacts, number: int, loaded_per_second: float) -> str:
    """Return the reason for data-loader workers."""
    each = " in each process" if machine.processes > 1 else ""
    return (
        f"{counted(number, 'data-loader worker')}{each}: the augmentation runs on the CPU, where a "
        f"core augments {loaded_per_second:,.0f} images/s (data.workers)"
    )


def _alone(measured: Speed) -> float:
    """Return the speed of the training steps without the augmentation of single images."""
    seconds = 1 / measured.images_per_second
    return 1 / max(_LEAST_SHARE_OF_TIME * seconds, seconds - 1 / measured.loaded_per_second)


def _guess_speed(tier: Tier, facts: PlanFacts) -> float:
    """Return the speed of a tier on a machine where nothing was measured."""
    machine = facts.machine
    flops = _ACCELERATOR_FLOPS.get(machine.device, _THREAD_FLOPS * machine.threads)
    return machine.times_as_fast * flops / (_FLOPS_PER_MAC * _work(tier, facts))


def _work(tier: Tier, facts: PlanFacts) -> float:
    data = facts.data
    return work(tier, image_side(tier, data.median_side), 1 if data.greyscale else 3)
