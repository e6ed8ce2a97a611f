"""The models that a plan chooses from, from small to large, and when each is worth its time.

A larger model reaches a higher accuracy, but only after more images seen; below the numbers here, a
smaller one is ahead after the same time. Measured on CIFAR-10 unless noted.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Of Muon with batches of 256."""
    why: str

    @property
    def mlp_dim(self) -> int:
        """Hidden dimension of the MLPs."""
        return 4 * self.embed_dim


TIERS = (
    Tier(
        "tiny", 64, 2, 2, 0, 0, 0, 64, 6e-3,
        "a quarter of small's computation: for seconds of training, or thumbnails",
    ),
    Tier(
        "small", 128, 2, 4, 12_000, 0, THUMBNAIL, 64, 4e-3,
        "learns fastest for the first few passes over some ten thousand images",
    ),
    Tier(
        "medium", 192, 4, 6, 400_000, 4_000, THUMBNAIL, 96, 3e-3,
        "from about 8 passes over 50,000 images, small has learned what it can hold",
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

TIERS_BY_NAME = {tier.name: tier for tier in TIERS}
OWN = "own"
"""The candidate that stands for a model that the user has chosen."""

LARGEST_UNSHRUNK = 95
"""Sources up to so many pixels keep their size; larger ones are photographs."""
_FEWEST_PIXELS, _SIDE_STEP, _LARGEST_SMALL = 8, 4, 64


def image_side(tier: Tier, median_side: int) -> int:
    """Return the side in pixels that a tier sees; images are never enlarged.

    Args:
        tier: decides the size of photographs.
        median_side: of the sources, in pixels.
    """
    if median_side > LARGEST_UNSHRUNK:
        return min(tier.photo_size, median_side // 32 * 32)
    side = min(_LARGEST_SMALL, median_side) // _SIDE_STEP * _SIDE_STEP
    return max(_FEWEST_PIXELS, side)


_WANTED_TOKENS, _WANTED_TOKENS_LARGE, _LARGE_SIDE = 64, 100, 128


def halvings(side: int) -> int:
    """Return how often the embedding halves an image, for about 64 tokens (100 from 128 pixels)."""
    wanted = _WANTED_TOKENS_LARGE if side >= _LARGE_SIDE else _WANTED_TOKENS
    choices = range(1, max(2, (max(side, 5) - 1).bit_length() - 1))
    return min(choices, key=lambda number: _distance(tokens(side, number), wanted))


def tokens(side: int, number: int) -> int:
    """Return the number of tokens after so many halvings of the whitened embedding."""
    return max(1, (side - 1) >> number) ** 2


def _distance(count: int, wanted: int) -> float:
    return max(count / wanted, wanted / count)


def work(tier: Tier, side: int, channels: int) -> float:
    """Return roughly the multiply-accumulates of an image, to compare candidates by."""
    number = halvings(side)
    widths: list[float] = [tier.embed_dim * 0.75 / 2.0**step for step in reversed(range(number))]
    widths.append(tier.embed_dim)
    whitened = 8 * channels
    total: float = side**2 * (4 * channels * whitened + 9 * whitened * widths[0])
    for step in range(number):
        pixels = (side / 2 ** (step + 1)) ** 2
        before, after = widths[step], widths[step + 1]
        inner = before**2 if step + 1 < number else 0.0
        total += 9 * pixels * (inner + before * after)
    count, width = tokens(side, number), tier.embed_dim
    return total + count * tier.depth * (12 * width**2 + 2 * count * width)
